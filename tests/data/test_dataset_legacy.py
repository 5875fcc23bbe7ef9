"""Methods and arguments of older releases, and the advice for those that are not here."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pyarrow as pa
import pytest

from paceline import data
from paceline.air.errors import ConfigError
from paceline.data import DatasetIterator, DatasetPipeline, MaterializedDataset, Schema
from paceline.data.grouped_data import GroupedData


def test_old_names_are_those_of_todays_classes() -> None:
    rows = data.from_items([{"kind": "a", "x": 1}])
    assert isinstance(rows.schema(), Schema)
    assert isinstance(rows.groupby("kind"), GroupedData)
    assert isinstance(rows.repeat(2), DatasetPipeline)
    assert isinstance(rows.iterator(), DatasetIterator)


def test_a_dataset_knows_whether_its_rows_are_there() -> None:
    lazy = data.range(5).map(lambda row: row)
    kept = lazy.materialize()
    assert [isinstance(each, MaterializedDataset) for each in (lazy, kept, kept.map(lambda row: row))] == [
        False,
        True,
        False,
    ]
    assert (lazy.is_fully_executed(), lazy.fully_executed().is_fully_executed()) == (False, True)
    assert isinstance(data.from_items([1, 2]), MaterializedDataset)
    assert not isinstance([1, 2], MaterializedDataset)
    with pytest.raises(TypeError, match="materialize"):
        MaterializedDataset()
    assert (kept.dataset_format(), kept.has_serializable_lineage()) == ("arrow", False)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("write_images", "Pillow"),
        ("get_internal_block_refs", r"references.*iter_batches\(\)"),
        ("to_pandas_refs", r"to_pandas\(\)"),
        ("to_spark", r"write_parquet\(\)"),
        ("to_modin", r"to_pandas\(limit=None\)"),
        ("serialize_lineage", r"cloudpickle\.dumps"),
        ("context", r"DataContext\.get_current\(\)"),
        ("mapp_batches", r"map_batches\?"),
    ],
)
def test_methods_that_are_not_here_say_what_is(name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=rf"\b{name}\b.*{advice}"):
        getattr(data.range(1), name)
    assert not hasattr(data.range(1), name)


def test_a_dataset_is_copied_and_pickled_as_before() -> None:
    rows = data.range(3)
    for each in (copy.copy(rows), copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):
        assert each.take_all() == rows.take_all()


def test_settings_of_a_scheduler_are_accepted_with_a_warning() -> None:
    rows = data.from_items([{"a": 1, "b": 2}])
    with pytest.warns(UserWarning, match="select_columns: num_cpus has no effect"):
        assert rows.select_columns(["a"], num_cpus=2).columns() == ["a"]
    with pytest.warns(UserWarning, match="drop_columns: compute has no effect"):
        assert rows.drop_columns(["a"], compute="actors").columns() == ["b"]
    with pytest.warns(UserWarning, match="random_shuffle: num_cpus has no effect"):
        assert rows.random_shuffle(num_cpus=1).count() == 1
    with pytest.warns(UserWarning, match="map_groups: num_gpus has no effect"):
        assert rows.groupby("a").map_groups(lambda group: group, num_gpus=1).count() == 1


def test_arguments_of_older_releases() -> None:
    rows = data.from_items([3, 1, 2])
    assert [row["item"] for row in rows.sort().take_all()] == [1, 2, 3]
    with pytest.raises(ConfigError, match=r"sort.*\['a', 'b'\]"):
        data.from_items([{"a": 1, "b": 2}]).sort()
    assert rows.map(lambda row: row).schema(fetch_if_missing=False) is None
    assert rows.schema(fetch_if_missing=False) == pa.schema([("item", pa.int64())])
    assert rows.columns(fetch_if_missing=True) == ["item"]
    assert [len(batch["item"]) for batch in rows.iter_batches(prefetch_blocks=2)] == [3]
    for method in (rows.iter_torch_batches, rows.to_torch):
        assert len(list(method(prefetch_blocks=0, batch_size=3))) == 1  # type: ignore[operator]
    finished = rows.iter_batches(_collate_fn=lambda batch: batch["item"], _finalize_fn=sum)
    assert list(finished) == [6]


def test_native_batches_are_frames() -> None:
    def doubled(frame: Any) -> Any:
        return frame.assign(item=frame["item"] * 2)

    with pytest.warns(UserWarning, match=r'"native".*"pandas"'):
        rows = data.from_items([3, 1]).map_batches(doubled, batch_format="native")
    assert rows.take_all() == [{"item": 6}, {"item": 2}]
