"""The line that continues a search or run is the same wherever it is printed."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.train import RunConfig
from paceline.tune import Callback, TuneConfig, Tuner
from paceline.view.catalog import find
from paceline.view.report_html import search_report
from tests.cli.conftest import Cli


def fails(config: dict[str, Any]) -> None:
    tune.report({"loss": config["x"]})
    if config["x"] == 2:
        raise ValueError("x is two")


class Watcher(Callback):
    pass


def printed(out: str) -> str:
    """The last line that fit() printed to continue the search."""
    (line,) = [line for line in out.splitlines() if "Tuner.restore(" in line][-1:]
    return line[line.index("Tuner.restore(") :]


def test_show_says_as_fit_does_what_to_give_again(tmp_path: Path, cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    watched = RunConfig(name="watched", storage_path=str(tmp_path), callbacks=[Watcher()], verbose=1)
    grid = Tuner(
        fails,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=TuneConfig(metric="loss", mode="min"),
        run_config=watched,
    ).fit()
    notebook = grid._repr_html_()
    said = capsys.readouterr()
    line = printed(said.out + said.err)
    assert "callbacks=..." in line
    assert json.loads(cli("show", tmp_path / "watched", "--json").out)["how_to_continue"] == line
    assert line in cli("show", tmp_path / "watched").out
    assert line in html.unescape(notebook)
    loaded = Tuner.restore(str(tmp_path / "watched"), fails).get_results()
    assert line in html.unescape(loaded._repr_html_())
    assert "callbacks=..." in search_report(find(tmp_path).searches[0])

    Tuner.restore(str(tmp_path / "watched"), fails, resume_errored=True, run_config=watched).fit()
    said = capsys.readouterr()
    assert printed(said.out + said.err) == line
    assert json.loads(cli("show", tmp_path / "watched", "--json").out)["how_to_continue"] == line
