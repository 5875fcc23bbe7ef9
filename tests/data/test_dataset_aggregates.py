"""Numbers over all rows."""

from __future__ import annotations

import datetime
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data.aggregate import AbsMax, AggregateFn, Count, Max, Mean, Min, Quantile, Std, Sum, Unique
from paceline.data.dataset import Dataset
from paceline.data.sources.computed import TableSource


def table(columns: dict[str, Any], block_rows: int = 3) -> Dataset:
    return Dataset(TableSource(pa.table(columns), block_rows))


VALUES = [4.5, -7.0, 2.25, 0.0, 11.0, -3.5, 8.0]


def test_one_column_gives_a_plain_number() -> None:
    dataset = table({"x": VALUES, "n": [1, 2, 3, 4, 5, 6, 7]})
    assert dataset.sum("x") == sum(VALUES)
    assert dataset.sum("n") == 28
    assert isinstance(dataset.sum("n"), int)
    assert (dataset.min("x"), dataset.max("x")) == (-7.0, 11.0)
    assert dataset.mean("x") == pytest.approx(statistics.mean(VALUES), rel=1e-15)
    assert dataset.std("x") == pytest.approx(statistics.stdev(VALUES), rel=1e-14)
    assert dataset.std("x", ddof=0) == pytest.approx(statistics.pstdev(VALUES), rel=1e-14)
    assert dataset.count() == 7


def test_several_columns_or_all_give_a_dict() -> None:
    dataset = table({"x": VALUES, "n": [1, 2, 3, 4, 5, 6, 7]})
    assert dataset.sum() == {"sum(x)": sum(VALUES), "sum(n)": 28}
    assert dataset.mean(["n", "x"]).keys() == {"mean(n)", "mean(x)"}


def test_the_only_column_gives_a_plain_number() -> None:
    dataset = table({"x": VALUES})
    assert dataset.sum() == dataset.sum(["x"]) == sum(VALUES)
    assert dataset.std() == dataset.std("x")
    assert data.range(10).max() == 9


def test_an_aggregation_without_a_column_is_over_the_only_one() -> None:
    assert data.range(10).aggregate(Max(), Min(alias_name="least")) == {"max(id)": 9, "least": 0}
    groups = table({"kind": ["a", "b", "a"], "x": [1, 2, 3]}).groupby("kind")
    assert groups.aggregate(Sum(), Count()).take_all() == [
        {"kind": "a", "sum(x)": 4, "count()": 2},
        {"kind": "b", "sum(x)": 2, "count()": 1},
    ]
    with pytest.raises(ConfigError, match=r"Max\(\).*Max\(on=.*\['x', 'n'\]"):
        table({"x": VALUES, "n": VALUES}).aggregate(Max())


def test_nulls_are_ignored_or_spread() -> None:
    dataset = table({"x": [1.0, None, 3.0, None, 5.0], "none": pa.array([None] * 5, pa.float64())}, 2)
    assert dataset.sum("x") == 9
    assert dataset.mean("x") == 3
    assert dataset.std("x") == 2
    for name in ("sum", "min", "max", "mean", "std"):
        assert getattr(dataset, name)("x", ignore_nulls=False) is None
        assert getattr(dataset, name)("none") is None
    assert dataset.aggregate(Count("x", ignore_nulls=True), Count("x", alias_name="all")) == {"count(x)": 3, "all": 5}


def test_a_dataset_without_rows() -> None:
    dataset = table({"x": pa.array([], pa.float64())})
    assert dataset.count() == 0
    assert dataset.sum("x") is None
    assert dataset.std("x") is None
    assert dataset.unique("x") == []
    own = AggregateFn(lambda key: [], lambda a, b: a + b, accumulate_row=lambda a, row: [*a, 1], name="own")
    assert dataset.aggregate(Count(), own) == {"count()": 0, "own": []}


def test_deviations_far_from_zero_are_exact() -> None:
    """What subtracts the square of the mean from the mean of the squares has no digit left here."""
    generator = np.random.default_rng(1)
    near = generator.standard_normal(10_000)
    dataset = table({"x": near + 1e9}, 1_000)
    assert dataset.std("x") == pytest.approx(float(np.std(near + 1e9, ddof=1)), rel=1e-9)
    two_places = np.concatenate([near, near + 1e9])
    assert table({"x": two_places}, 999).std("x") == pytest.approx(float(np.std(two_places, ddof=1)), rel=1e-12)


def test_integer_sums_do_not_wrap_around() -> None:
    large = 2**62
    assert table({"n": [large, -large, large, 5 - large, large - 1, 0]}, 1).sum("n") == large + 4
    assert table({"n": [large, large, -large, -3]}, 4).sum("n") == large - 3  # beyond 64 bits on the way only
    with pytest.raises(DataError, match=r"sum\(n\).*64 bits.*'n'"):
        table({"n": [large, large, large]}, 2).sum("n")
    assert table({"n": pa.array([2**63, 5], pa.uint64())}, 1).min("n") == 5


def test_types_other_than_floats() -> None:
    days = [datetime.date(2024, 1, day) for day in (3, 1, 2)]
    dataset = table(
        {
            "flag": [True, False, True],
            "text": ["b", "c", "a"],
            "day": days,
            "half": pa.array(np.array([1, 2, 3], np.float16)),
            "kind": pa.array(["y", "x", "y"]).dictionary_encode(),
        },
        2,
    )
    assert dataset.sum("flag") == 2
    assert dataset.mean("flag") == pytest.approx(2 / 3)
    assert (dataset.min("text"), dataset.max("text")) == ("a", "c")
    assert dataset.max("day") == days[0]
    assert dataset.sum("half") == 6
    assert dataset.unique("kind") == ["y", "x"]


def test_what_cannot_be_aggregated_is_named() -> None:
    dataset = table({"x": [1.0], "text": ["a"], "lists": [[1]]})
    with pytest.raises(DataError, match="'text'"):
        dataset.sum()
    with pytest.raises(DataError, match="'lists'"):
        dataset.max("lists")
    with pytest.raises(DataError, match="'data'"):
        data.range_tensor(3).mean("data")
    with pytest.raises(DataError, match=r"'y'.*\['x', 'text', 'lists'\]"):
        dataset.sum("y")
    with pytest.raises(ConfigError, match="Sum"):
        dataset.aggregate("sum")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="alias_name"):
        dataset.aggregate(Sum("x"), Sum("x"))


def test_several_aggregations_take_one_pass() -> None:
    seen: list[int] = []

    def watched(batch: dict[str, Any]) -> dict[str, Any]:
        seen.extend(batch["x"].tolist())
        return batch

    dataset = table({"x": [3, -9, 4, 4]}).map_batches(watched)
    dataset.schema()
    seen.clear()
    found = dataset.aggregate(
        Count(), Sum("x"), Min("x"), Max("x"), Mean("x"), Std("x"), AbsMax("x"), Quantile("x", 0.25), Unique("x")
    )
    assert seen == [3, -9, 4, 4]
    assert found == {
        "count()": 4,
        "sum(x)": 2,
        "min(x)": -9,
        "max(x)": 4,
        "mean(x)": 0.5,
        "std(x)": pytest.approx(statistics.stdev([3, -9, 4, 4])),
        "abs_max(x)": 9,
        "quantile(x)": float(np.quantile([3, -9, 4, 4], 0.25)),
        "unique(x)": [3, -9, 4],
    }


def test_unique_has_nulls_and_the_order_of_appearance() -> None:
    assert table({"x": [3, 1, None, 3, None, 2, 1]}).unique("x") == [3, 1, None, 2]


@pytest.mark.parametrize("by", ["row", "block"])
def test_functions_of_the_user(by: str) -> None:
    accumulate: dict[str, Any] = {"accumulate_row": lambda total, row: total + row["x"] * row["y"]}
    if by == "block":
        accumulate = {"accumulate_block": lambda total, rows: total + sum(rows["x"].to_numpy() * rows["y"].to_numpy())}
    product = AggregateFn(lambda key: 0, lambda a, b: a + b, finalize=float, name="product", **accumulate)
    dataset = table({"x": list(range(10)), "y": list(range(10))}, 4)
    assert dataset.aggregate(product, Sum("x")) == {"product": 285.0, "sum(x)": 45}


def test_functions_of_the_user_that_fail_or_lack_something() -> None:
    failing = AggregateFn(lambda key: 0, lambda a, b: a, accumulate_row=lambda a, row: row["z"], name="failing")
    with pytest.raises(DataError, match=r"aggregate\(failing\).*KeyError"):
        table({"x": [1]}).aggregate(failing)
    with pytest.raises(ConfigError, match=r"accumulate_row.*accumulate_block"):
        AggregateFn(lambda key: 0, lambda a, b: a, name="nothing")
    with pytest.raises(ConfigError, match="name"):
        AggregateFn(lambda key: 0, lambda a, b: a, accumulate_row=lambda a, row: a)


def test_count_reads_no_rows_where_it_is_known() -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("not to be called")

    assert data.range(1000).map(fails).count() == 1000
    assert data.range(1000).filter(lambda row: row["id"] < 10).count() == 10


def test_count_tells_what_was_skipped(tmp_path: Path) -> None:
    data.range(5).write_parquet(tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"nothing of the kind")
    with pytest.warns(UserWarning, match=r"count.*5 rows.*broken\.parquet"):
        assert data.read_parquet(str(tmp_path), on_error="skip").count() == 5


def test_what_arrow_has_no_order_for_is_said_with_the_column() -> None:
    dataset = data.from_arrow(pa.table({"d": pa.array([1, 2], pa.duration("ms"))}))
    with pytest.raises(DataError, match=r"aggregate\(min\(d\)\)"):
        dataset.min("d")


def test_a_misspelt_column_is_told_with_the_near_miss() -> None:
    with pytest.raises(DataError, match=r"^sum\(idd\).*'idd'.*'id'\?"):
        data.range(5).sum("idd")
