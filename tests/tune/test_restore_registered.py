"""What was asked for by a registered name is made again by that name, in a search and in a single run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError
from paceline.train import DataParallelTrainer
from paceline.tune import Callback, TuneConfig, Tuner
from tests.air.test_plugins import install
from tests.tune.interrupting import Bench, InterruptAt, facts

CODE = """
from paceline.tune import Callback
from paceline.tune.schedulers import FIFOScheduler
from paceline.tune.search import BasicVariantGenerator

made = []


class Nudge(BasicVariantGenerator):
    def __init__(self):
        super().__init__()
        made.append("searcher")


class Calm(FIFOScheduler):
    def __init__(self):
        super().__init__()
        made.append("scheduler")


class Tracker(Callback):
    def on_trial_start(self, trial, **info):
        made.append("tracked")

    def get_state(self):
        return {"of": "tracker"}

    def set_state(self, state):
        assert state == {"of": "tracker"}
        made.append("state")


def broken():
    raise KeyError("ACME_TOKEN")
"""
ENTRY_POINTS = """
[paceline.searchers]
nudge = acme_plugins:Nudge

[paceline.schedulers]
calm = acme_plugins:Calm

[paceline.trackers]
acme = acme_plugins:Tracker
broken = acme_plugins:broken
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The list of what the package has made."""
    site = tmp_path / "site"
    site.mkdir()
    install(site, "acme_plugins", CODE, ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(site))
    import acme_plugins  # type: ignore[import-not-found]

    yield acme_plugins.made
    del sys.modules["acme_plugins"]


def count(config: dict[str, Any]) -> None:
    for step in range(3):
        session.report({"score": config["x"] * step})


def interrupted(tmp_path: Path, callbacks: list[Any], capsys: pytest.CaptureFixture[str], **settings: Any) -> str:
    """The line that is printed at the end of a search that was interrupted."""
    with pytest.raises(KeyboardInterrupt):
        Tuner(
            count,
            param_space={"x": tune.grid_search([1, 2])},
            tune_config=TuneConfig(max_concurrent_trials=1, **settings),
            run_config=RunConfig(
                name="nudged", storage_path=str(tmp_path), verbose=1, callbacks=callbacks, engine="inline"
            ),
        ).fit()
    return capsys.readouterr().out.splitlines()[-1]


class Counting(Callback):
    """Has a state of its own, which a restore without it must not give to another callback."""

    def get_state(self) -> dict[str, Any]:
        return {"of": "counting"}


def test_a_search_is_restored_with_all_that_had_a_name(
    acme: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callbacks = [Counting(), "acme", InterruptAt(1)]
    line = interrupted(tmp_path, callbacks, capsys, search_alg="nudge", scheduler="calm")
    place = str(tmp_path / "nudged")
    assert line == (
        f"To continue: Tuner.restore({place!r}, trainable=..., "
        "run_config=RunConfig(verbose=1, callbacks=..., engine='inline')).fit()"
    )
    for _ in range(2):  # a restored search is restored like the first one
        acme.clear()
        restored = Tuner.restore(place, count, num_samples=2)
        assert acme == ["searcher", "scheduler"]
    assert [each["rows"] for each in facts(restored.fit())] == [3] * 4
    assert acme[2:] == ["state", *["tracked"] * 3]  # the first trial had ended
    assert "had callbacks" in capsys.readouterr().out  # the one of the test is missed


class OwnSearch(tune.search.BasicVariantGenerator):
    pass


def test_the_line_that_continues_a_search_names_what_must_be_given_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = interrupted(tmp_path, [InterruptAt(0)], capsys, search_alg=OwnSearch(), trial_name_creator=str)
    assert "trainable=..., tune_config=TuneConfig(search_alg=..., trial_name_creator=...), run_config=Run" in line


def test_a_run_is_restored_with_its_tracker(acme: list[str], tmp_path: Path) -> None:
    class Interrupt(Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    def settings(*callbacks: Any) -> RunConfig:
        return RunConfig(storage_path=str(tmp_path), verbose=0, callbacks=list(callbacks), engine="inline")

    with pytest.raises(KeyboardInterrupt) as caught:
        DataParallelTrainer(
            count,
            train_loop_config={"x": 1},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=settings("acme", Interrupt()),
        ).fit()
    path = caught.value.result.path  # type: ignore[attr-defined]
    acme.clear()
    with pytest.warns(UserWarning, match="The run had callbacks"):
        result = DataParallelTrainer.restore(path, count).fit()
    assert result.metrics["score"] == 2
    assert acme == ["tracked"]


def test_names_are_checked_where_they_are_written(acme: list[str]) -> None:
    with pytest.raises(ConfigError, match="no searcher 'nudg': did you mean nudge"):
        TuneConfig(search_alg="nudg")
    with pytest.raises(ConfigError, match="no scheduler 'clam'"):
        TuneConfig(scheduler="clam")
    assert TuneConfig(search_alg="nudge", scheduler="calm").search_alg == "nudge"
    assert acme == []  # nothing is made before it is needed


def test_a_tracker_that_cannot_be_made_is_named(acme: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"'broken' of paceline\.trackers.*KeyError.*ACME_TOKEN"):
        RunConfig(callbacks=["broken"])


def test_a_restored_search_misses_its_callbacks_in_silence_too(tmp_path: Path) -> None:
    grid = Bench(tmp_path).interrupted(at=0)
    with pytest.warns(UserWarning, match=r"The experiment had callbacks, which restore\(\) cannot bring back"):
        Tuner.restore(grid.experiment_path, count).fit()
