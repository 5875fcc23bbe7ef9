"""Plots of a grid: real files in every format, what is inferred for them, and what is refused."""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sklearn  # noqa: F401  # sets environment variables when it is first imported

from paceline.air.errors import ConfigError, TuneError
from paceline.tune.plots import Observation, evenly, study_of
from paceline.tune.result_grid import ResultGrid
from tests.tune.outcomes import Outcomes

PLOTS = ("optimization_history", "parallel_coordinates", "param_importances", "slice", "contour")


def rest_slow(names: Sequence[str], *kept: str) -> list[Any]:
    """All but the kept ones have the mark `slow`."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]


STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def searched_grid(trials: int = 12) -> ResultGrid:
    """The loss depends on the learning rate alone; one trial failed, one has NaN."""
    outcomes, draw = Outcomes(), random.Random(7)
    for number in range(trials):
        lr, width, act = 10 ** draw.uniform(-5, -1), draw.randint(1, 9), draw.choice(["relu", "tanh"])
        value = math.nan if number == 3 else (math.log10(lr) + 3) ** 2
        outcomes.add([{"loss": value}], searched={"loop/lr": lr, "loop/width": width, "act": act})
    outcomes.add([], searched={"loop/lr": 1e-3, "loop/width": 1, "act": "relu"}, error=ValueError("at once"))
    return outcomes.grid("loss", "min")


def text_of(page: Path) -> str:
    return page.read_text().replace(r"\u002f", "/")


@pytest.mark.parametrize("plot", rest_slow(PLOTS, "param_importances", "slice"))
def test_interactive_plots_need_nothing_else(tmp_path: Path, plot: str) -> None:
    path = tmp_path / "deeper" / f"{plot}.html"
    assert getattr(searched_grid(), f"plot_{plot}")(path) == path
    text = text_of(path)
    assert "<script src=" not in text
    assert "loss" in text
    assert plot == "optimization_history" or "loop/lr" in text


@pytest.mark.parametrize("plot", rest_slow(PLOTS, "contour"))
def test_still_plots(tmp_path: Path, plot: str) -> None:
    path = getattr(searched_grid(), f"plot_{plot}")(str(tmp_path / f"{plot}.png"))
    assert path.read_bytes().startswith(STARTS[".png"])


@pytest.mark.parametrize("suffix", rest_slow([".svg", ".pdf"], ".svg"))
def test_other_formats(tmp_path: Path, suffix: str) -> None:
    path = searched_grid().plot_optimization_history(tmp_path / f"history{suffix}")
    assert path.read_bytes().startswith(STARTS[suffix])


def test_drawing_leaves_no_trace(tmp_path: Path) -> None:
    import matplotlib.pyplot
    import optuna

    before = dict(matplotlib.rcParams), optuna.logging.get_verbosity()
    searched_grid().plot_slice(tmp_path / "slice.png")
    assert (dict(matplotlib.rcParams), optuna.logging.get_verbosity()) == before
    assert matplotlib.pyplot.get_fignums() == []


def test_the_study_that_is_plotted() -> None:
    draw = random.Random(3)
    observations = [
        Observation(
            {
                "log": 10 ** draw.uniform(-6, 0),
                "even": draw.uniform(0, 1),
                "int": draw.randint(2, 5),
                "mixed": draw.choice([1, 0.5]),
                "flag": draw.choice([True, False]),
                "object": draw.choice([print, [1, 2], None]),
            },
            float(number) if number else None,
        )
        for number in range(200)
    ]
    study = study_of(observations, "max")
    assert study.best_trial.number == 199
    assert study.direction.name == "MAXIMIZE"
    assert [trial.state.name for trial in study.trials[:2]] == ["FAIL", "COMPLETE"]
    domains: dict[str, Any] = study.best_trial.distributions
    assert domains["log"].log
    assert not domains["even"].log
    assert (domains["int"].low, domains["int"].high) == (2, 5)
    assert domains["mixed"].high == 1.0
    assert set(domains["flag"].choices) == {"True", "False"}
    assert set(domains["object"].choices) == {"print", "[1, 2]", "None"}
    assert study.trials[5].params["log"] == observations[5].params["log"]


def test_parameters_by_the_last_part_of_their_name(tmp_path: Path) -> None:
    text = text_of(searched_grid().plot_slice(tmp_path / "slice.html", params=["lr", "act"]))
    assert "loop/lr" in text
    assert "loop/width" not in text


def test_importances_are_reproducible(tmp_path: Path) -> None:
    grid = searched_grid()
    first = grid.plot_param_importances(tmp_path / "first.svg").read_text()
    assert "loop/lr" in first  # svg keeps the names in comments
    pictures = [grid.plot_param_importances(tmp_path / f"{n}.png").read_bytes() for n in range(2)]
    assert pictures[0] == pictures[1]


def test_importances_of_many_trials_take_some_of_them() -> None:
    observations = [Observation({"x": n}, None if n % 3 == 0 else float(n)) for n in range(30)]
    assert [each.params["x"] for each in evenly(observations, 4)] == [1, 8, 16, 23]
    assert len(evenly(observations, 20)) == 20


@pytest.mark.parametrize(
    ("plot", "asked", "message"),
    [
        ("slice", {"path": "slice.jpg"}, r"\.html, \.png, \.svg, \.pdf"),
        ("slice", {"path": "slice"}, r"\.html"),
        ("slice", {"params": ["widht"]}, "'widht'.*width"),
        ("slice", {"params": "lr"}, r"\['lr'\]"),
        ("slice", {"mode": "up"}, "mode.*'up'"),
        ("contour", {"params": ["lr"]}, "two parameters"),
    ],
)
def test_what_cannot_be_plotted(tmp_path: Path, plot: str, asked: dict[str, Any], message: str) -> None:
    arguments = {"path": "plot.html", **asked}
    path = tmp_path / arguments.pop("path")
    with pytest.raises(ConfigError, match=message):
        getattr(searched_grid(), f"plot_{plot}")(path, **arguments)
    assert not path.exists()


def test_too_little_to_plot(tmp_path: Path) -> None:
    outcomes, path = Outcomes(), tmp_path / "plot.html"
    with pytest.raises(TuneError, match="no trials"):
        outcomes.grid("loss", "min").plot_slice(path)
    outcomes.add([{"loss": 1.0}])
    with pytest.raises(ConfigError, match=r"No trial.*parameter"):
        outcomes.grid("loss", "min").plot_slice(path)
    outcomes.add([{"loss": 1.0}], searched={"lr": 1.0})
    with pytest.raises(ConfigError, match=r"Importances.*metric.*\b2 trial"):
        outcomes.grid("loss", "min").plot_param_importances(path)
    outcomes.add([{"loss": 2.0}], searched={"width": 1.0})
    with pytest.raises(ConfigError, match=r"parameter.*params="):
        outcomes.grid("loss", "min").plot_param_importances(path)
    with pytest.raises(TuneError, match="'accuracy'"):
        outcomes.grid("accuracy", "min").plot_slice(path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("absent", "plot", "suffix"),
    [
        ("optuna", "slice", ".html"),
        ("plotly", "slice", ".html"),
        ("matplotlib", "slice", ".png"),
        ("sklearn", "param_importances", ".html"),
    ],
)
def test_a_missing_library_is_named(tmp_path: Path, absent: str, plot: str, suffix: str) -> None:
    with uninstalled(absent), pytest.raises(ImportError, match=r"paceline\[plots\]"):
        getattr(searched_grid(), f"plot_{plot}")(tmp_path / f"plot{suffix}")


@contextlib.contextmanager
def uninstalled(library: str) -> Iterator[None]:
    """As if a library were not there, and nothing of Optuna had been imported while it was."""
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in (library, "optuna")}
    for name in before:
        del sys.modules[name]
    sys.modules[library] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] in (library, "optuna")]:
            del sys.modules[name]
        sys.modules.update(before)
