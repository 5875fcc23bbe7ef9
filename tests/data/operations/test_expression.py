"""Conditions of filter() as text or expressions of Arrow."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from paceline import data
from paceline.air.errors import ConfigError
from paceline.data.dataset_transforms import Transforms
from paceline.data.sources.computed import TableSource
from tests.data.transforming import column, dataset


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > 3 and a <= 5", [4, 5]),
        ("2 < a < 5", [3, 4]),
        ("a < 2 or not (a < 8)", [0, 1, 8, 9]),
        ("c == 'c1'", [1, 4, 7]),
        ("c in ['c1', 'c2'] and a > 6", [7, 8]),
        ("c not in ('c0', 'c1')", [2, 5, 8]),
        ("a * 2 + 1 == b + 4", [3]),
        ("a != -(-3) and a < 5", [0, 1, 2, 4]),
        ("(a > 7) & (b > 8.5)", [9]),
    ],
)
def test_filter_by_text(text: str, expected: list[int]) -> None:
    assert column(dataset().filter(expr=text), "a") == expected


def test_filter_by_expression_leaves_out_rows_where_it_is_null() -> None:
    ds = Transforms(TableSource(pa.table({"a": [1, None, 3, 4]})))
    assert column(ds.filter(expr=pc.field("a") > 1), "a") == [3, 4]
    assert column(ds.filter(expr="a is None"), "a") == [None]
    assert column(ds.filter(expr="a is not None"), "a") == [1, 3, 4]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a >", "'a >'.*expression"),
        ("len(c) > 1", r"len\(c\).*Arrow"),
        ("a in b", "list of constants"),
        ("aa > 1", r"'aa'.*'a'\?"),
        ("c > 1", "c > 1.*string"),
        ("a", "evaluated|true or false"),
    ],
)
def test_a_condition_that_cannot_work_is_refused_at_once(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        dataset().filter(expr=text)


def test_division_in_an_expression_is_that_of_python() -> None:
    rows = data.range(6).filter(expr="id / 2 > 1").take_all()
    assert [row["id"] for row in rows] == [3, 4, 5]
