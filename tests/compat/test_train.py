"""DummyTrainer: how fast datasets are read."""

from __future__ import annotations

from pathlib import Path

import paceline.data
from paceline.air import RunConfig
from paceline.air.util.check_ingest import DummyTrainer, make_local_dataset_iterator
from paceline.data.preprocessors import StandardScaler


def test_datasets_are_read_and_counted(tmp_path: Path) -> None:
    result = DummyTrainer(
        datasets={"train": paceline.data.range(100)},
        num_epochs=2,
        batch_size=30,
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    read = {name: result.metrics[name] for name in ("epochs_read", "batches_read", "rows_read", "bytes_read")}
    assert read == {"epochs_read": 2, "batches_read": 8, "rows_read": 200, "bytes_read": 1600}
    assert result.metrics["batch_delay"] >= 0


def test_an_iterator_in_this_process_sees_preprocessed_rows() -> None:
    rows = make_local_dataset_iterator(paceline.data.range(3), StandardScaler(["id"]))
    [batch] = rows.iter_batches(batch_size=3)
    assert batch["id"].mean() == 0
