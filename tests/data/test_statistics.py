"""One pass over a dataset gives exact statistics, whatever its blocks, types and missing values are."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from paceline.air.errors import DataError
from paceline.data.aggregate import Sum
from paceline.data.block import Block, ReadRequest, Source
from paceline.data.dataset import Dataset
from paceline.data.plan import Plan
from paceline.data.sources.computed import TableSource
from paceline.data.statistics import Extremes, Moments, Quantiles, Statistic, compute
from paceline.data.store import Scratch
from paceline.data.value_counts import CategoryCounts, ValueCounts
from tests.data.preprocessing import skewed

if TYPE_CHECKING:
    from paceline.data.block import Chunk


def plan(block_rows: int = 7, **columns: Any) -> Plan:
    return Plan(TableSource(pa.table(columns), block_rows))


def value_of(statistic: Statistic, values: Any, block_rows: int = 7) -> Any:
    return compute(plan(block_rows, x=values), [statistic])[statistic]


@pytest.mark.parametrize("block_rows", [1, 7, 10_000])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int8", "uint64", "bool"])
def test_numbers_of_every_type(dtype: str, block_rows: int) -> None:
    numbers = np.random.default_rng(1).integers(0, 100, 300).astype(dtype)
    wide = numbers.astype(np.float64)
    found = compute(plan(block_rows, x=pa.array(numbers)), [Moments("x"), Extremes("x")])
    assert found[Moments("x")].count == 300
    assert found[Moments("x")].mean == pytest.approx(wide.mean(), rel=1e-13)
    assert found[Moments("x")].variance == pytest.approx(wide.var(), rel=1e-12)
    assert found[Extremes("x")] == (wide.min(), wide.max())


def test_missing_values_are_left_out_whether_null_or_nan() -> None:
    numbers = skewed()
    with_nulls = pa.array(numbers, mask=np.arange(500) % 7 == 0)
    left = with_nulls.to_numpy(zero_copy_only=False)
    found = compute(plan(x=with_nulls), [Moments("x"), Extremes("x"), Quantiles("x", (0.5,))])
    assert found[Moments("x")].count == np.count_nonzero(~np.isnan(left))
    assert found[Moments("x")].mean == pytest.approx(np.nanmean(left), rel=1e-13)
    assert found[Extremes("x")] == (np.nanmin(left), np.nanmax(left))
    assert found[Quantiles("x", (0.5,))] == (np.nanquantile(left, 0.5),)


def test_a_small_spread_around_a_large_mean_is_exact() -> None:
    numbers = 1e9 + np.random.default_rng(2).normal(0, 1e-3, 50_000)
    exact = np.std((numbers - 1e9).astype(np.longdouble))
    moments = value_of(Moments("x"), numbers, block_rows=9_999)
    assert np.sqrt(moments.variance) == pytest.approx(float(exact), rel=1e-9)


def test_equal_values_have_no_spread_below_zero() -> None:
    assert value_of(Moments("x"), np.full(1000, 0.1)).variance == pytest.approx(0, abs=1e-32)


@pytest.mark.parametrize("values", [pa.array([], pa.float64()), pa.array([None, None], pa.int32()), pa.nulls(3)])
def test_without_values_there_are_no_statistics(values: pa.Array) -> None:
    found = compute(plan(x=values), [Moments("x"), Extremes("x"), Quantiles("x", (0.1,)), ValueCounts("x")])
    assert [found[Moments("x")], found[Extremes("x")], found[Quantiles("x", (0.1,))]] == [None, None, None]
    assert found[ValueCounts("x")].most_frequent() is None


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int8", "uint64", "uint32"])
@pytest.mark.parametrize("rows", [1, 2, 5, 1000])
def test_quantiles_are_numpys(dtype: str, rows: int) -> None:
    numbers = np.random.default_rng(rows).normal(10, 40, rows).clip(0 if dtype[0] == "u" else -100, 100).astype(dtype)
    qs = (0.0, 0.1, 0.25, 0.5, 0.77, 1.0)
    expected = np.quantile(numbers.astype(np.float64), qs)
    assert value_of(Quantiles("x", qs), numbers) == pytest.approx(expected, rel=1e-14)


def test_quantiles_of_extreme_values() -> None:
    numbers = np.array([-np.inf, -1e300, -0.0, 0.0, 5e-324, 1e300, np.inf])
    qs = tuple(place / 6 for place in range(7))
    assert value_of(Quantiles("x", qs), numbers) == tuple(numbers)
    whole = np.array([-(2**63), -1, 0, 2**63 - 1])
    assert value_of(Quantiles("x", (0, 1)), whole) == (-(2.0**63), 2.0**63)


def test_many_values_go_to_a_file_without_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Scratch.__init__, "__defaults__", (1000,))
    used = []
    pwrite = os.pwrite

    def watched(descriptor: int, content: Any, offset: int) -> int:
        written = pwrite(descriptor, content, offset)
        used.append(os.fstat(descriptor).st_size)
        assert os.listdir(tmp_path) == []
        return written

    monkeypatch.setattr(os, "pwrite", watched)
    columns = {"x": skewed(5000, dtype=np.float32), "y": np.arange(5000)[::-1].copy()}
    found = compute(plan(100, **columns), [Quantiles("x", (0.1, 0.9)), Quantiles("y", (0.5,))])
    assert found[Quantiles("y", (0.5,))] == (2499.5,)
    assert found[Quantiles("x", (0.1, 0.9))] == pytest.approx(
        np.nanquantile(columns["x"].astype(np.float64), (0.1, 0.9)), rel=1e-14
    )
    assert max(used) > 50_000


def test_a_full_disk_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with Scratch(memory_bytes=0) as scratch, pytest.raises(DataError, match=r"No space.*TMPDIR"):
        scratch.put(np.arange(3))


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "uint64", "int32"])
@pytest.mark.parametrize("spread", ["near", "far", "moving"])
def test_value_counts_of_integers(dtype: str, spread: str) -> None:
    limits = np.iinfo(dtype)
    source = np.random.default_rng(4)
    numbers = source.integers(max(limits.min, -50), min(limits.max, 60), 400).astype(dtype)
    if spread == "far":
        numbers[::3] = limits.max
        numbers[1::3] = limits.min
    elif spread == "moving":  # every block has another window of values
        numbers = np.sort(source.integers(max(limits.min, -(10**6)), min(limits.max, 10**6), 400).astype(dtype))
    table = value_of(ValueCounts("x"), numbers, block_rows=13)
    values, counts = np.unique(numbers, return_counts=True)
    assert table.values.type == pa.array(numbers).type
    assert table.values.to_pylist() == values.tolist()
    assert table.counts.tolist() == counts.tolist()


def test_value_counts_of_text_floats_and_truth_values() -> None:
    words = pa.array([None if i % 5 == 0 else f"ä{i % 3}" for i in range(60)])
    floats = np.array([1.5, np.nan, -2.0] * 20)
    truths = [True, False, True] * 20
    found = compute(plan(s=words, f=floats, b=truths), [ValueCounts("s"), ValueCounts("f"), ValueCounts("b")])
    text, fractions, flags = (found[ValueCounts(name)] for name in "sfb")
    assert (text.values.to_pylist(), text.counts.tolist(), text.missing) == (["ä0", "ä1", "ä2"], [16, 16, 16], 12)
    assert (fractions.values.to_pylist(), fractions.missing) == ([-2.0, 1.5], 20)
    assert (flags.values.to_pylist(), flags.counts.tolist()) == ([False, True], [20, 40])


def test_many_different_values_are_merged_along_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.data.value_counts.PENDING", 50)
    words = [f"w{i % 700:04}" for i in range(3000)]
    table = value_of(ValueCounts("x"), words, block_rows=99)
    assert table.values.to_pylist() == sorted(set(words))
    assert table.counts.tolist() == [5 if i < 200 else 4 for i in range(700)]


def test_categories_count_as_their_values() -> None:
    table = value_of(ValueCounts("x"), pa.array(["b", "a", "b", None]).dictionary_encode(), block_rows=3)
    assert (table.values.to_pylist(), table.counts.tolist(), table.missing) == (["a", "b"], [1, 2], 1)


def test_items_of_lists() -> None:
    table = value_of(CategoryCounts("x"), pa.array([[1, 2], [], None, [2, None], [2]]), block_rows=2)
    assert (table.values.to_pylist(), table.counts.tolist(), table.missing) == ([1, 2], [1, 3], 2)


def test_the_most_frequent_value_is_the_smallest_of_several() -> None:
    assert value_of(ValueCounts("x"), ["b", "a", "c", "a", "b"], block_rows=2).most_frequent() == "a"


def test_equal_statistics_are_computed_once() -> None:
    added = []

    class Counted(Moments):
        def seen_in(self, rows: Chunk) -> pa.Array:
            added.append(rows.num_rows)
            return super().seen_in(rows)

    assert len(compute(plan(x=np.arange(5)), [Counted("x"), Counted("x")])) == 1
    assert added == [5]


def test_what_preprocessors_want_to_know_can_be_asked_of_groups_too() -> None:
    table = pa.table({"k": ["a", "b", "a", "b"], "x": [1.0, 2.0, 3.0, None]})
    found = Dataset(TableSource(table, 1)).groupby("k").aggregate(Extremes("x"), Sum("x"))
    assert found.take_all() == [
        {"k": "a", "Extremes(x)": [1.0, 3.0], "sum(x)": 4.0},
        {"k": "b", "Extremes(x)": [2.0, 2.0], "sum(x)": 2.0},
    ]


class Watched(Source):
    """A table that remembers which columns were read, in which block and thread."""

    def __init__(self, table: pa.Table, block_rows: int) -> None:
        self._table = TableSource(table, block_rows)
        self.read_columns: list[tuple[str, ...] | None] = []
        self.threads: set[int] = set()

    def blocks(self) -> Any:
        return [Block(block.name, block.rows) for block in self._table.blocks()]

    def schema(self) -> pa.Schema:
        return self._table.schema()

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        self.read_columns.append(request.columns)
        self.threads.add(threading.get_ident())
        return self._table.read(block, request)


def test_one_pass_reads_each_block_once_and_only_the_columns_needed() -> None:
    source = Watched(pa.table({name: np.arange(40) for name in "abcd"}), block_rows=10)
    compute(Plan(source), [Moments("b"), Quantiles("d", (0.5,)), ValueCounts("b"), Extremes("d")])
    assert source.read_columns == [("b", "d")] * 4


def test_the_result_does_not_depend_on_which_thread_is_first() -> None:
    numbers = skewed(3000)
    results = {value_of(Moments("x"), numbers, block_rows=50) for _ in range(5)}
    assert len(results) == 1


@pytest.mark.parametrize(
    ("statistic", "message"),
    [
        (Moments("nothing"), r"Scaler.*'nothing'.*\['x', 'tags', 'points'\]"),
        (Moments("x"), "Scaler.*'x'.*string.*numbers"),
        (Quantiles("x", (0.5,)), "'x'.*string"),
        (ValueCounts("tags"), "'tags'.*list.*plain values"),
        (CategoryCounts("points"), "'points'.*struct.*lists"),
    ],
)
def test_a_column_that_cannot_be_used_is_refused_before_reading(statistic: Statistic, message: str) -> None:
    source = Watched(pa.table({"x": ["a"], "tags": [["a"]], "points": [{"x": 1}]}), block_rows=1)
    with pytest.raises(DataError, match=message):
        compute(Plan(source), [statistic], "Scaler")
    assert source.read_columns == []


def test_nothing_wanted_reads_nothing() -> None:
    source = Watched(pa.table({"x": [1]}), block_rows=1)
    assert compute(Plan(source), []) == {}
    assert source.read_columns == []
