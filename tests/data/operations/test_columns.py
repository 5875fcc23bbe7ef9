"""Choosing, dropping and renaming columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from paceline import data
from paceline.air.errors import ConfigError
from paceline.data.block import ReadRequest
from tests.data.transforming import chunks, dataset, rows, watched


def test_select_drop_and_rename() -> None:
    ds = dataset(2)
    assert rows(ds.select_columns(["c", "a"])) == [{"c": "c0", "a": 0}, {"c": "c1", "a": 1}]
    assert rows(ds.drop_columns(["a", "b"])) == [{"c": "c0"}, {"c": "c1"}]
    assert rows(ds.rename_columns({"a": "b", "b": "a"}).select_columns("a")) == [{"a": 0.0}, {"a": 1.0}]
    assert rows(ds.rename_columns(["x", "y", "z"]))[1] == {"x": 1, "y": 1.0, "z": "c1"}
    renamed = ds.rename_columns({"a": "x"})
    assert renamed.plan.schema() == chunks(renamed)[0].schema


def test_columns_that_a_function_makes() -> None:
    made = dataset(2).map_batches(lambda batch: {"x": batch["a"], "y": batch["b"]})
    assert rows(made.select_columns("y")) == [{"y": 0.0}, {"y": 1.0}]
    assert rows(made.drop_columns("y")) == [{"x": 0}, {"x": 1}]
    assert rows(made.rename_columns({"x": "z"}).select_columns("z")) == [{"z": 0}, {"z": 1}]
    assert rows(made.filter(expr="x > 0")) == [{"x": 1, "y": 1.0}]


def test_the_source_is_asked_only_for_columns_that_are_needed() -> None:
    source, ds = watched()
    chunks(ds.select_columns(["c", "a"]))
    chunks(ds.drop_columns(["c"]), ReadRequest(columns=("a",)))
    chunks(ds.rename_columns({"a": "x"}).select_columns("x"))
    chunks(ds.filter(expr="b > 1").select_columns("a"))
    chunks(ds.random_sample(0.5, seed=1).select_columns("d"))
    chunks(ds.select_columns(["a", "b"]).map_batches(lambda batch: batch), ReadRequest(columns=("a",)))
    assert [request.columns for request in source.requests] == [
        ("c", "a"),
        ("a",),
        ("a",),
        ("a", "b"),
        ("d",),
        ("a", "b"),
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ds: ds.select_columns("aa"), r"select_columns.*'aa'.*'a'\?"),
        (lambda ds: ds.drop_columns(["a", "zzz"]), "drop_columns.*'zzz'.*'a', 'b', 'c'"),
        (lambda ds: ds.rename_columns({"q": "x"}), "rename_columns.*'q'"),
        (lambda ds: ds.rename_columns({"a": "b"}), "rename_columns.*'b'.*twice"),
        (lambda ds: ds.rename_columns(["x"]), "3 columns.*1 names"),
        (lambda ds: ds.select_columns(["a", "a"]), "'a'.*twice"),
        (lambda ds: ds.select_columns([]), "at least one column"),
        (lambda ds: ds.drop_columns(["a", "b", "c"]), "drop_columns.*no column"),
        (lambda ds: ds.select_columns([1]), "select_columns.*1.*name"),
        (lambda ds: ds.map(lambda row: row).select_columns("a").drop_columns("b"), None),
    ],
)
def test_columns_that_are_not_there_are_refused_where_they_are_named(change: Any, says: str | None) -> None:
    if says is None:
        change(dataset())  # cannot be known before the function runs
        return
    with pytest.raises(ConfigError, match=says):
        change(dataset())


def test_thousands_of_columns() -> None:
    names = [f"c{number}" for number in range(4000)]
    wide = data.from_arrow(pa.table({name: [1.0, 3.0] for name in names}))
    chosen = wide.rename_columns({name: f"{name}!" for name in names}).select_columns(
        [f"{name}!" for name in names[1:]]
    )
    zipped = chosen.zip(wide).to_arrow()
    assert zipped.column_names == [*(f"{name}!" for name in names[1:]), *names]
    assert zipped.num_rows == 2
