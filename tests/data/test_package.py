"""The names that paceline.data offers, and older ones."""

from __future__ import annotations

import pytest

import paceline.data


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("from_arrow_refs", r"from_arrow\(\)"),
        ("from_mars", r"from_pandas\(\)"),
        ("from_modin", r"from_pandas\(\)"),
        ("from_numpy_refs", r"from_numpy\(\)"),
        ("from_pandas_refs", r"from_pandas\(\)"),
        ("read_bigquery", r"from_arrow\(\)"),
        ("read_databricks_tables", r"read_sql\(\)"),
        ("read_mongo", r"from_arrow\(\)"),
    ],
)
def test_names_that_are_not_here_say_what_is(name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=rf"paceline\.data\.{name}\b.*{advice}"):
        getattr(paceline.data, name)


def test_types_of_the_old_module_block() -> None:
    from paceline.air.data_batch_type import DataBatchType
    from paceline.data.block import CallableClass, DataBatch

    assert (DataBatch, CallableClass) == (DataBatchType, type)
    with pytest.raises(ImportError, match=r"BlockAccessor.*batch_format"):
        from paceline.data.block import BlockAccessor  # type: ignore[attr-defined]  # noqa: F401
