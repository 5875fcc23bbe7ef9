"""A ResultGrid in a notebook: the best trials, and how many others there are."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

from paceline.tune.result_grid import ResultGrid
from tests.tune.outcomes import Outcomes, losses


def shown(grid: ResultGrid) -> ElementTree.Element:
    return ElementTree.fromstring(grid._repr_html_())


def rows_of(grid: ResultGrid) -> list[list[str]]:
    table = next(shown(grid).iter("table"))
    return [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]


def text_of(grid: ResultGrid) -> str:
    return " ".join(" ".join(shown(grid).itertext()).split())


def test_the_best_come_first() -> None:
    outcomes = Outcomes()
    outcomes.add(losses(3.0), searched={"lr": 0.1, "model/width": 8})
    outcomes.add(losses(9.0, 1.0), searched={"lr": 0.2, "model/width": 16})
    outcomes.add(losses(math.nan), searched={"lr": 0.3, "model/width": 32})
    outcomes.add(losses(0.5), error=ValueError("<b>boom</b>\nmore"))
    grid = outcomes.grid("loss", "min")
    heading, *rows = rows_of(grid)
    assert heading == ["trial", "status", "lr", "width", "loss (min)", "iterations", "time"]
    assert [row[0][-1] for row in rows] == ["1", "0", "2", "3"]
    assert rows[0][1:6] == ["finished", "0.2", "16", "1", "2"]
    text = text_of(grid)
    assert text.startswith("ResultGrid · 4 trials · 3 finished · 1 failed")
    assert "1 failed train_abcde_00003: <b>boom</b>" in text
    assert text.endswith("files /experiment")
    assert outcomes.loads == []


def test_ten_thousand_trials() -> None:
    outcomes = Outcomes()
    for number in range(10_000):
        outcomes.add(losses(float((number * 7919) % 10_000)))
    grid = outcomes.grid("loss", "max")
    assert [row[2] for row in rows_of(grid)[1:]] == [str(value) for value in range(9999, 9989, -1)]
    assert "… and 9,990 more trials" in text_of(grid)
    assert len(grid._repr_html_()) < 20_000
    assert outcomes.loads == []


def test_without_a_metric_the_first_are_shown() -> None:
    outcomes = Outcomes()
    for number in range(12):
        outcomes.add(losses(1.0), searched={f"p{place}": number for place in range(10)})
    grid = outcomes.grid()
    assert rows_of(grid)[0][-2:] == ["iterations", "time"]
    assert [row[0] for row in rows_of(grid)[1:]] == [f"train_abcde_{number:05d}" for number in range(10)]
    assert "parameters left out: p8, p9" in text_of(grid)


def test_no_trials() -> None:
    assert text_of(Outcomes().grid()).startswith("ResultGrid · 0 trials")
