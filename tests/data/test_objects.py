"""Columns of Python objects: kept inside the program, never read from a file."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline import data
from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.errors import DataError
from paceline.data.objects import ObjectType, object_array, packed, read_rows
from paceline.train import DataParallelTrainer


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


POINTS = [Point(1), Point(2, 3), None]


def test_objects_go_in_and_come_out() -> None:
    rows = data.from_items([{"point": point, "n": n} for n, point in enumerate(POINTS)])
    assert [row["point"] for row in rows.take_all()] == POINTS
    assert rows.take_batch(3)["point"].tolist() == POINTS
    assert rows.to_pandas()["point"].tolist() == POINTS
    assert list(rows.to_pandas().columns) == ["point", "n"]
    assert rows.to_arrow().to_pylist()[1] == {"point": Point(2, 3), "n": 1}
    assert data.from_items([Point(5)]).take_all() == [{"item": Point(5)}]
    assert data.from_pandas(pd.DataFrame({"point": POINTS})).take(1) == [{"point": Point(1)}]
    assert data.from_arrow(rows.to_arrow()).take_all() == rows.take_all()


def test_functions_take_and_return_objects() -> None:
    def moved(batch: dict[str, Any]) -> dict[str, Any]:
        return {"point": [Point(point.x + 1) for point in batch["point"]]}

    points = data.range(6).map(lambda row: {"point": Point(row["id"])})
    kept = points.map_batches(moved).filter(lambda row: row["point"].x > 4)
    assert [row["point"] for row in kept.take_all()] == [Point(5), Point(6)]
    nested = data.range(1).map(lambda row: {"all": [Point(1), {"deep": Point(2)}]})
    assert nested.take(1) == [{"all": [Point(1), {"deep": Point(2)}]}]


def test_objects_survive_storing_sorting_and_pickling() -> None:
    rows = data.from_items([{"n": -n, "point": Point(n)} for n in range(5)])
    for each in (rows.materialize(), rows.random_shuffle(seed=1), pickle.loads(pickle.dumps(rows))):
        assert [row["point"].x for row in each.sort("n").take_all()] == [4, 3, 2, 1, 0]
    pickled = pickle.loads(pickle.dumps(rows.materialize()))
    assert pickled.take(1) == [{"n": 0, "point": Point(0)}]


def test_a_worker_gets_the_objects(tmp_path: Path) -> None:
    def sum_up() -> None:
        shard = session.get_dataset_shard("train")
        session.report({"sum": sum(row["point"].x for row in shard.iter_rows())})

    padding = "x" * 1000  # so much that rows travel as a file
    rows = data.from_items([{"point": Point(n), "padding": padding} for n in range(200)])
    trainer = DataParallelTrainer(
        sum_up,
        datasets={"train": rows},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    assert trainer.fit().metrics["sum"] == sum(range(200))


def test_values_that_are_plain_but_do_not_fit_together_are_still_rejected() -> None:
    with pytest.raises(DataError, match="'item' cannot be stored"):
        data.from_items([1, "a"])
    later = data.range(5000).map(lambda row: {"x": row["id"] if row["id"] < 4096 else Point(1)})
    with pytest.raises(DataError, match=r"'x'.*Python objects.*int64"):
        later.take_all()
    with pytest.raises(DataError, match=r"'item'.*lock.*pickle"):
        data.from_items([threading.Lock()])


def test_objects_are_not_written_to_files(tmp_path: Path) -> None:
    rows = data.from_items([{"point": Point(1), "n": 1}])
    for write in (rows.write_parquet, rows.write_json, rows.write_tfrecords):
        with pytest.raises(DataError, match=r"'point'.*Python objects.*drop_columns"):
            write(str(tmp_path / "out"))
    rows.drop_columns(["point"]).write_parquet(str(tmp_path / "out"))


class Canary:
    """Unpickling it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_file_that_claims_to_hold_objects_is_not_unpickled(tmp_path: Path) -> None:
    fired, place = tmp_path / "fired", tmp_path / "in"
    place.mkdir()
    table = pa.table({"x": object_array([Canary(fired)])})
    pq.write_table(table.replace_schema_metadata({b"paceline.objects": b'["x"]'}), place / "evil.parquet")

    def read_by_user(batch: dict[str, Any]) -> Any:
        return pq.read_table(place / "evil.parquet")

    for rows in (
        data.read_parquet(str(place)),
        data.from_arrow(pq.read_table(place)),
        data.range(1).map_batches(read_by_user),
        data.range(1).map_batches(read_by_user, concurrency=1),
    ):
        kept = rows.materialize()
        for each in (rows, kept, pickle.loads(pickle.dumps(kept))):
            assert isinstance(each.take_all()[0]["x"], bytes)
            each.to_pandas()
    claims = pq.read_table(place)
    assert claims.schema.metadata[b"paceline.objects"] == b'["x"]'
    _, (chunk,) = read_rows(packed(claims.schema, claims.to_batches()))
    assert not isinstance(chunk.schema.field("x").type, ObjectType)
    assert not fired.exists()
    table.to_pylist()
    assert fired.exists()  # the canary works


def test_classes_of_a_script_reach_other_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
from paceline import data

class Point:
    def __init__(self, x): self.x = x

rows = data.from_items([{"p": Point(n)} for n in range(3)])
moved = rows.map(lambda row: {"p": Point(row["p"].x + 1)}, concurrency=1).take_all()
assert [row["p"].x for row in moved] == [1, 2, 3] and isinstance(moved[0]["p"], Point)
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
