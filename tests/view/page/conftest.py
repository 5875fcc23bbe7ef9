"""Runs that the tests of the page look at, made once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, session
from paceline.train import DataParallelTrainer
from paceline.tune import TuneConfig, Tuner
from tests.view.page.paging import Page, showing

HOSTILE = "<img src=x onerror=alert(1)>\"';--\\u202e"
"""As a run's name, a metric and a configuration's key."""


def train(config: dict[str, Any]) -> None:
    for step in range(1, 7):
        saved = Checkpoint.from_dict({"step": step}) if step % 2 == 0 else None
        print(f"step {step} of {HOSTILE}")
        session.report({"loss": 1 / step, HOSTILE: step, "text": HOSTILE}, checkpoint=saved)
        if step == config.get("fails_at"):
            raise ValueError(f"step {step} failed: {HOSTILE}")


def fit(root: Path | str, name: str, **config: Any) -> Path:
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"lr": 0.1, **config},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            name=name,
            storage_path=str(root),
            verbose=0,
            engine="inline",
            failure_config=FailureConfig(max_failures=0),
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss"),
        ),
    )
    return Path(trainer.fit(raise_on_error=False).path)


def search(root: Path, name: str) -> Path:
    def trial(config: dict[str, Any]) -> None:
        session.report({"score": -((config["x"] - 2) ** 2) + 0.1 * config["deep"]["y"]})

    space = {"x": tune.uniform(0, 4), "deep": {"y": tune.choice([1, 2])}, "lr": tune.loguniform(1e-5, 1e-1)}
    tuner = Tuner(
        trial,
        param_space=space,
        tune_config=TuneConfig(metric="score", mode="max", num_samples=12, max_concurrent_trials=1),
        run_config=RunConfig(name=name, storage_path=str(root), verbose=0, engine="inline"),
    )
    return Path(str(tuner.fit().experiment_path))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, a failed one with a hostile name, a search, and a damaged run."""
    root = tmp_path_factory.mktemp("page") / "results"
    fit(root, "good")
    fit(root, HOSTILE, fails_at=4, **{HOSTILE: HOSTILE})
    search(root, "search")
    damaged = root / "bad" / "damaged"
    damaged.mkdir(parents=True)
    (damaged / "journal.jsonl").write_text(f"not a journal {HOSTILE}\nat all\n")
    return root


@pytest.fixture
def results(made: Path, tmp_path: Path) -> Path:
    """A copy, for tests that change it."""
    return Path(shutil.copytree(made, tmp_path / "results", symlinks=True))


@pytest.fixture(scope="module")
def page(made: Path) -> Iterator[Page]:
    with showing(made) as page:
        yield page


@pytest.fixture
def own_page(results: Path) -> Iterator[Page]:
    with showing(results) as page:
        yield page
