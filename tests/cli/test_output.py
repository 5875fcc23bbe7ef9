from __future__ import annotations

import json
import math

import pytest

from paceline.cli import output


def test_json_has_no_nan_and_no_raw_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_json([{"loss": math.nan, "nested": {"x": (math.inf, 1)}, "name": "\x1b[31m\x9b\x7fé"}])
    said = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\x7f"} & set(said)
    assert json.loads(said) == [{"loss": None, "nested": {"x": [None, 1]}, "name": "\x1b[31m\x9b\x7fé"}]


def test_csv_flattens_and_keeps_the_order(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_csv([{"b": 1, "a": {"x": 2}}, {"a": {"y": "q,\x1b[1mz"}, "c": [1, 2]}], ["a/x", "b"])
    assert capsys.readouterr().out.splitlines() == ["a/x,b,a/y,c", "2,1,,", ',,"q,z","[1, 2]"']


def test_signs_that_cannot_be_encoded_do_not_end_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    output.write("a\udcffb")
    assert capsys.readouterr().out == "a?b\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200000, "2 d")]
)
def test_spans(seconds: float, text: str) -> None:
    assert output.span_text(seconds) == text


def test_there_is_no_width_and_no_color_in_a_pipe() -> None:
    assert output.terminal_width() is None
    assert not output.has_colors()
