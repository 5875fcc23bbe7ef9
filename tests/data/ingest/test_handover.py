"""Datasets on their way to the workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

import paceline.data
from paceline.air import RunConfig, ScalingConfig, session
from paceline.train.data_parallel_trainer import DataParallelTrainer


def test_more_tables_than_one_message_carries_reach_the_workers(tmp_path: Path) -> None:
    def loop() -> None:
        total = sum(int(batch["id"].sum()) for batch in session.get_dataset_shard("train").iter_batches())
        others = [session.get_dataset_shard(f"other {number}").count() for number in range(20)]
        session.report({"total": total, "others": others})

    numbers = np.arange(10_000)
    tables = [pa.table({"id": numbers + number}) for number in range(20)]
    first, *rest = [paceline.data.from_arrow(table) for table in tables]
    others = {f"other {number}": paceline.data.from_arrow(table) for number, table in enumerate(tables)}
    result = DataParallelTrainer(
        loop,
        datasets={"train": first.union(*rest), **others},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    totals = result.rank_dataframe["total"].tolist()
    assert sum(totals) == sum(int(table["id"].to_numpy().sum()) for table in tables)
    assert result.metrics["others"] == [10_000] * 20
