"""Dataset itself: what Python may do with it, older spellings, passes over its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline import data


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (lambda: data.range(5)["id"], r"select_columns\(\['id'\]\)"),
        (lambda: data.range(5)[3], r"take\(n\)"),
        (lambda: next(iter(data.range(5).iterator())), r"iter_batches\(\)"),
        (lambda: len(data.range(5).iterator()), r"count\(\)"),
    ],
)
def test_what_python_offers_is_answered_with_the_method_to_use(do: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        do()
    assert data.range(5).iterator()


def test_old_spellings_work(tmp_path: Path) -> None:
    data.range(5).write_parquet(tmp_path)
    ds = data.read_parquet(str(tmp_path))
    (file,) = tmp_path.glob("*.parquet")
    for each in (ds, ds.lazy(), ds.limit(3), ds.sort("id"), ds.random_shuffle(), ds.union(ds)):
        assert each.input_files() == [str(file)]
    executed = ds.fully_executed()
    file.unlink()
    assert executed.count() == 5
    assert executed.input_files() == []
    assert isinstance(executed.take_batch(1), executed.default_batch_format())
    assert len(list(executed.iter_batches(prefetch_blocks=2, batch_size=2))) == 3
    assert data.range_table(3).take_all() == [{"value": 0}, {"value": 1}, {"value": 2}]


def test_repeat_says_how_many_epochs_there_are() -> None:
    passes = [len(epoch.take_all()) for epoch in data.range(10).repeat(3).iter_epochs(1)]
    assert passes == [10]
    counts = []
    for epoch in data.range(10).repeat(3).iter_epochs():
        counts.append(sum(len(batch["id"]) for batch in epoch.iter_batches(batch_size=4)))
    assert counts == [10, 10, 10]


def test_a_pass_that_may_be_taken_for_all_epochs_causes_a_warning() -> None:
    repeated = data.range(10).repeat(2)
    with pytest.warns(UserWarning, match=r"repeat\(2\).*iter_epochs"):
        assert len(list(repeated.iter_rows())) == 10
    assert len(list(repeated.iter_rows())) == 10
    for without_number in (data.range(10).repeat(), data.range(10).repeat(1)):
        assert len(list(without_number.iter_rows())) == 10
