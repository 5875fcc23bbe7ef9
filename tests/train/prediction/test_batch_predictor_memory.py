"""Predictions of more rows than fit into memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS, COLUMNS = 2_000_000, 20
DATA_MB = ROWS * COLUMNS * 8 // 1_000_000

PROGRAM = """
import resource, sys
from paceline import data
from paceline.air.checkpoint import Checkpoint
from paceline.train.batch_predictor import BatchPredictor
from tests.train.prediction.models import ArrowLine

source, target, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
predictor = BatchPredictor(Checkpoint.from_dict({"slope": 2.0}), ArrowLine)
predictor.predict(data.range(10).map_batches(lambda batch: {"x": batch["id"] * 1.0})).write_parquet(target + "-first")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = data.read_parquet(source)
predictor.predict(rows, keep_columns=["f0"], min_scoring_workers=workers).write_parquet(target)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "rows.parquet"
    portion = 50_000
    schema = pa.schema([("x", pa.float64()), *((f"f{index}", pa.float64()) for index in range(COLUMNS - 1))])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, ROWS, portion):
            x = np.arange(start, start + portion, dtype=float)
            repeated = pa.array(np.arange(portion, dtype=float) % 100)
            writer.write_table(pa.table([pa.array(x), *[repeated] * (COLUMNS - 1)], schema=schema))
    return path


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rows_stream_from_parquet_to_parquet(large: Path, tmp_path: Path, workers: int) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", PROGRAM, str(large), str(tmp_path / "out"), str(workers)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown_mb = int(done.stdout)
    assert grown_mb < DATA_MB / 3, f"{grown_mb} MB more for {DATA_MB} MB of rows"
    written = pq.read_table(tmp_path / "out")
    assert np.array_equal(written.column("predictions").to_numpy(), 2.0 * np.arange(ROWS))
    assert written.column("f0").to_numpy()[:101].tolist() == [*range(100), 0]
