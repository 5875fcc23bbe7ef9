"""The guide to serving has every option of the command, and every status that the server describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paceline.cli.main import parser
from paceline.serve.limits import Limits
from paceline.serve.schema import STATUSES

GUIDE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def test_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["serve", "--help"])
    options = set(re.findall(r"^ +(?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert "--port" in options
    assert options - set(re.findall(r"--[a-z-]+", GUIDE)) == {"--help"}


def test_every_status_is_explained() -> None:
    (table,) = re.findall(r"\| code \|.*?\n\n", GUIDE, re.DOTALL)
    assert set(STATUSES) <= set(re.findall(r"\b\d{3}\b", table))


def test_limits_are_those_of_the_server() -> None:
    limits = Limits()
    (table,) = re.findall(r"## Limits.*?\n\n.*?\n\n", GUIDE, re.DOTALL)
    for figure in (
        f"{limits.max_body_bytes >> 20} MiB",
        f"{limits.max_rows:,} rows",
        f"within {limits.body_timeout_s:g} s",
        f"{limits.held_bytes >> 20} MiB",
        f"| {limits.max_waiting} |",
        f"within {limits.request_timeout_s:g} s",
        f"{limits.max_header_bytes >> 10} KiB, complete within {limits.header_timeout_s:g} s",
        f"| {limits.max_connections}; beyond {limits.max_idle_connections} idle",
        f"closed after {limits.keep_alive_s:g} s",
    ):
        assert figure in table
