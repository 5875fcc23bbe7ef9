"""Bodies that are taken, what is answered, and the reason that a bad one gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paceline.serve.columns import InputColumns
from paceline.serve.json_body import decode
from paceline.train.predictor import Predictor
from paceline.web.problem import Problem
from tests.serve.serving import ARROW, JSON, Server, Times, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(Times(), max_body_bytes=1 << 20, max_rows=1000) as running:
        yield running


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    "body",
    [
        {"rows": [{"x": 1}, {"x": 2.5}]},
        [{"x": 1}, {"x": 2.5}],
        {"columns": {"x": [1, 2.5]}},
        {"columns": ["x"], "data": [[1], [2.5]]},
        {"columns": ["x"], "data": [[1], [2.5]], "index": [7, 8]},
    ],
)
def test_forms_of_json(server: Server, body: Any) -> None:
    answer = server.predict(body)
    assert (answer.status, answer.json) == (200, {"predictions": [10.0, 25.0]})
    assert answer.headers["Content-Type"] == "application/json"


def test_arrow_is_answered_with_arrow(server: Server) -> None:
    table = pa.table({"x": pa.chunked_array([[1.0], [2.0, None]])})
    answer = server.ask("POST", "/predict", stream(table), ARROW)
    assert (answer.status, answer.headers["Content-Type"]) == (200, ARROW["Content-Type"])
    assert pa.ipc.open_stream(answer.body).read_all().to_pydict() == {"predictions": [10.0, 20.0, None]}


def test_accept_chooses_the_kind_of_answer(server: Server) -> None:
    table = stream(pa.table({"x": [1.0]}))
    as_json = server.ask("POST", "/predict", table, {**ARROW, "Accept": "application/json"})
    assert as_json.json == {"predictions": [10.0]}
    as_arrow = server.predict([{"x": 1.0}], Accept=ARROW["Content-Type"])
    assert pa.ipc.open_stream(as_arrow.body).read_all().to_pydict() == {"predictions": [10.0]}
    assert server.predict([{"x": 1.0}], Accept="text/html, */*;q=0.1").json == {"predictions": [10.0]}
    assert server.predict([{"x": 1.0}], Accept="text/html").status == 406


def test_a_frame_with_an_index_written_as_arrow(server: Server) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0]}, index=["a", "b"])
    answer = server.ask(
        "POST", "/predict", stream(pa.Table.from_pandas(frame)), {**ARROW, "Accept": "application/json"}
    )
    assert answer.json == {"predictions": [10.0, 20.0]}


def test_types_that_a_model_sees() -> None:
    seen: list[dict[str, Any]] = []

    def look(frame: pd.DataFrame) -> pd.DataFrame:
        seen.append({name: (frame[name].dtype.kind, frame[name].tolist()) for name in frame})
        return pd.DataFrame({"predictions": range(len(frame))})

    with serving(Predictor.from_pandas_udf(look)) as server:
        columns = {"whole": [1, 2], "number": [1, 2.5], "gap": [1, None], "truth": [True, False], "empty": [None, None]}
        assert server.predict({"columns": columns}).status == 200
        assert server.predict({"columns": {"text": ["a", None], "image": [[[1, 2]], [[3, 4]]]}}).status == 200
    first, second = seen
    assert first["whole"] == ("i", [1, 2])
    assert first["number"] == ("f", [1.0, 2.5])
    assert first["gap"][0] == "f"
    assert np.isnan(first["gap"][1][1])
    assert first["truth"] == ("b", [True, False])
    assert first["empty"][0] == "f"
    assert second["text"][1][0] == "a"
    assert pd.isna(second["text"][1][1])
    assert [image.tolist() for image in second["image"][1]] == [[[1, 2]], [[3, 4]]]


def test_answers_with_several_columns_texts_gaps_and_tensors() -> None:
    def answers(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "predictions_0": [0.5, np.nan],
                "predictions_1": [np.inf, 1.0],
                "label": ["a", None],
                "vector": [np.array([1.0, np.nan]), np.array([3.0, 4.0])],
                "when": pd.to_datetime(["2024-01-02", None]),
            }
        )

    with serving(Predictor.from_pandas_udf(answers)) as server:
        answer = server.predict([{"x": 1}, {"x": 2}])
    assert answer.json == {
        "predictions_0": [0.5, None],
        "predictions_1": [None, 1.0],
        "label": ["a", None],
        "vector": [[1.0, None], [3.0, 4.0]],
        "when": ["2024-01-02T00:00:00", None],
    }


def test_many_rows_and_a_large_answer(server: Server) -> None:
    with serving(Times()) as roomy:
        rows = [{"x": number, "more": "text" * 10} for number in range(20_000)]
        assert roomy.predict(rows).json["predictions"] == [number * 10.0 for number in range(20_000)]


BAD_JSON = {
    "empty": (b"", 400, "empty"),
    "not json": (b"rows=1", 400, "byte 0"),
    "cut off": (b'{"rows": [', 400, "truncated"),
    "trailing comma": (b'{"rows": [{"x": 1},]}', 400, "byte 19"),
    "NaN": (b'[{"x": NaN}]', 400, "byte 7"),
    "Infinity": (b'[{"x": -Infinity}]', 400, "byte"),
    "too large a number": (b'[{"x": 1e999}]', 400, "out of range"),
    "no utf-8": (b'[{"x": "\xff"}]', 400, "cannot be read"),
    "deep lists": (b"[" * 500_000, 400, "too deeply"),
    "deep objects": (b'{"a":' * 100_000, 400, "too deeply"),
    "a long integer": (b'[{"x": ' + b"9" * 100_000 + b"}]", 400, "out of range"),
    "an integer of 80 bits": (b'[{"x": 999999999999999999999999}]', 422, "'x' has an integer of more than 64 bits"),
    "a number": (b"1", 422, "does not say what the rows are"),
    "one row": (b'{"x": 1}', 422, "does not say what the rows are"),
    "something beside the rows": (b'{"rows": [{"x": 1}], "y": 2}', 422, "does not say what the rows are"),
    "no rows": (b'{"rows": []}', 422, "no rows"),
    "rows that are no list": (b'{"rows": {"x": 1}}', 422, "must be a list"),
    "a row that is no object": (b'[{"x": 1}, 2]', 422, "Row 1 is not an object"),
    "rows with other columns": (b'[{"x": 1}, {"y": 2}]', 422, "Row 1 and row 0 differ in their columns: 'x', 'y'"),
    "no columns": (b"[{}]", 422, "no columns"),
    "columns of two lengths": (b'{"columns": {"x": [1], "y": [1, 2]}}', 422, "'y' has 2 rows and not 1"),
    "a column that is no list": (b'{"columns": {"x": 1}}', 422, "'x' must be a list"),
    "a name twice": (b'{"columns": ["x", "x"], "data": [[1, 2]]}', 422, "twice"),
    "names that are no text": (b'{"columns": [1], "data": [[1]]}', 422, "list of names"),
    "a short row": (b'{"columns": ["x", "y"], "data": [[1]]}', 422, "Row 0 has 1 value; the columns need 2 values"),
    "mixed kinds": (b'[{"x": 1}, {"x": "a"}]', 422, "'x' mixes a number and text"),
    "truth among numbers": (b'[{"x": 1}, {"x": true}]', 422, "'x' mixes"),
    "objects inside": (b'[{"x": {"y": 1}}]', 422, "'x' has objects as values"),
    "ragged lists": (b'[{"x": [1, 2]}, {"x": [1]}]', 422, "'x' must be lists of numbers"),
    "lists of text": (b'[{"x": ["a"]}]', 422, "'x' must be lists of numbers"),
    "lists of nothing": (b"[[], []]", 422, "no columns"),
    "columns with values, and data": (b'{"columns": {"x": [1]}, "data": [[2]]}', 422, "must be a list of names"),
    "too many rows": (json.dumps([{"x": 1}] * 1001).encode(), 413, "1001 rows; this server takes 1000"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json_gets_a_reason(server: Server, name: str) -> None:
    body, status, reason = BAD_JSON[name]
    answer = server.predict(body)
    assert (answer.status, reason in answer.reason) == (status, True), answer.body
    assert server.predict([{"x": 1}]).status == 200


def bad_arrow() -> dict[str, tuple[bytes, int, str]]:
    good = stream(pa.table({"x": [1.0, 2.0]}))
    broken = bytearray(stream(pa.table({"x": ["a" * 100, "b" * 100]})))
    at = broken.index((100).to_bytes(4, "little") + (200).to_bytes(4, "little"))
    broken[at : at + 4] = (2**30).to_bytes(4, "little")  # text that would lie far outside of the body
    growing = pa.DictionaryArray.from_arrays(pa.array([0] * 900, pa.int32()), ["text " * 1000])
    inside = pa.ListArray.from_arrays([0, 900], growing)
    nested = pa.table({"x": pa.array([{"a": 1}])})
    endless = stream(pa.table({"x": pa.nulls(12345)})).replace(
        (12345).to_bytes(8, "little"), (2**50).to_bytes(8, "little")
    )
    return {
        "empty": (b"", 400, "empty"),
        "json": (b'[{"x": 1}]', 400, "cannot be read"),
        "cut off": (good[: len(good) // 2], 400, "cannot be read"),
        "offsets that lead outside": (bytes(broken), 400, "cannot be read"),
        "zstd": (stream(pa.table({"x": [1.0] * 999}), compression="zstd"), 415, "without compression"),
        "lz4": (stream(pa.table({"x": [1.0] * 999}), compression="lz4"), 415, "without compression"),
        "compressed words": (stream(pa.table({"x": growing}), compression="zstd"), 415, "without compression"),
        "no rows": (stream(pa.table({"x": pa.array([], pa.float64())})), 422, "no rows"),
        "no columns": (stream(pa.table({})), 422, "no columns"),
        "a name twice": (stream(pa.table([[1], [2]], names=["x", "x"])), 422, "twice"),
        "structs": (stream(nested), 422, "'x' has type struct"),
        "views": (stream(pa.table({"x": pa.array(["a"], pa.string_view())})), 422, "'x' has type string_view"),
        "nulls without end": (endless, 413, "1125899906842624 rows"),
        "words that grow": (stream(pa.table({"x": growing})), 413, "'x' stands for 4500000 bytes"),
        "words that would grow inside of lists": (stream(pa.table({"x": inside})), 422, "'x' has type list<"),
        "too many rows": (stream(pa.table({"x": range(1001)})), 413, "1001 rows"),
    }


BAD_ARROW = bad_arrow()


@pytest.mark.parametrize("name", BAD_ARROW)
def test_bad_arrow_gets_a_reason(server: Server, name: str) -> None:
    body, status, reason = BAD_ARROW[name]
    answer = server.ask("POST", "/predict", body, ARROW)
    assert (answer.status, reason in answer.reason) == (status, True), answer.body


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/octet-stream"},
        {"Content-Type": "application/x-pickle"},
        {"Content-Type": "application/python-pickle"},
        {**JSON, "Content-Encoding": "gzip"},
    ],
)
def test_other_kinds_of_bodies_are_not_taken(server: Server, headers: dict[str, str]) -> None:
    answer = server.ask("POST", "/predict", b'[{"x": 1}]', headers)
    assert (answer.status, "application/json" in answer.reason) == (415, True)


def test_json_with_a_charset(server: Server) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert server.ask("POST", "/predict", b'[{"x": 1}]', headers).status == 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'[{"a": 1, "b": 2, "c": 3}]', "in row 0; unknown: 'c'. The model takes: 'a', 'b'"),
        (b'[{"a": 1, "b": 2}, {"a": 1}]', "in row 1; missing: 'b'"),
        (b'[{"a": 1, "B": 2}]', "missing: 'b'; unknown: 'B'"),
        (b'[{"a": 1, "b": "2"}]', "'b' takes numbers, but row 0 has text"),
        (b'[{"a": 1, "b": [2]}]', "'b' takes numbers, but row 0 has a list"),
        (b'{"columns": {"a": [1]}}', "missing: 'b'"),
        (b'{"columns": {"a": [1, 2], "b": [1, "x"]}}', "'b' takes numbers, but row 1 has text"),
        (b"[[1, 2, 3]]", "Row 0 has 3 values; the columns need 2 values"),
        (b'[{"a": 1, "b": 2}, 3]', "Row 1 is not an object"),
    ],
)
def test_columns_that_the_model_knows(body: bytes, reason: str) -> None:
    columns = InputColumns({"a": "number", "b": "number"}, complete=True)
    with pytest.raises(Problem) as caught:
        decode(body, columns, 100, nameless=True)
    assert caught.value.status == 422
    assert reason in caught.value.reason


def test_a_long_list_of_columns_is_cut() -> None:
    columns = InputColumns(dict.fromkeys(map(str, range(1000)), "number"), complete=True)
    with pytest.raises(Problem, match="and 988 more"):
        decode(b'[{"x": 1}]', columns, 100, nameless=True)
