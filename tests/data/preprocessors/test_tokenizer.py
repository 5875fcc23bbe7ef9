"""Tokenizer."""

from __future__ import annotations

import pyarrow as pa
import pytest

import paceline.data
from paceline.air.errors import DataError
from paceline.data.preprocessors import CountVectorizer, Tokenizer


def test_texts_become_lists_of_tokens() -> None:
    texts = ["I like  tea", "", "naïve", None]
    ds = paceline.data.from_arrow(pa.table({"t": texts, "x": range(4)}))
    rows = Tokenizer(["t"]).transform(ds).take_all()
    assert [row["t"] for row in rows] == [None if text is None else text.split(" ") for text in texts]
    assert [row["x"] for row in rows] == [0, 1, 2, 3]


def test_tokens_of_another_function() -> None:
    def commas(text: str) -> list[str]:
        return [part.strip() for part in text.split(",")]

    result = Tokenizer(["t"], tokenization_fn=commas).transform_batch(pa.table({"t": ["a, b", None]}))
    assert result["t"].to_pylist() == [["a", "b"], None]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_every_kind_of_text(kind: pa.DataType) -> None:
    table = pa.table({"t": pa.array(["a b", "a b", None]).cast(kind)})
    assert Tokenizer(["t"]).transform_batch(table)["t"].to_pylist() == [["a", "b"], ["a", "b"], None]
    ds = paceline.data.from_arrow(table.slice(0, 2))
    assert CountVectorizer(["t"]).fit_transform(ds).to_pandas().to_dict("list") == {"t_a": [1, 1], "t_b": [1, 1]}


def test_columns_that_are_no_text() -> None:
    ds = paceline.data.from_items([{"t": 1}])
    with pytest.raises(DataError, match=r"'t'.*int64.*text"):
        Tokenizer(["t"]).transform(ds).take_all()
