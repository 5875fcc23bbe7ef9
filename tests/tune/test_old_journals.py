"""Searches of earlier versions, kept as files: they can be read, and replayed to the same decisions, forever."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, RunConfig, session
from paceline.tune import ResultGrid, TuneConfig, Tuner
from paceline.tune.experiment.grid import load_grid
from paceline.tune.search import Searcher

SEARCHES = Path(__file__).parent / "fixtures" / "journals_1"

ENDS = {
    "search_again": [("finished", 0.5, 1), ("finished", 0.25, 1), ("finished", 0.125, 1)],
    "search_asha": [("finished", 3.32012, 4), *(("finished", score, 1) for score in (0.58937, 0.55009, 0.2162))],
    "search_interrupted": [("finished", 3.22465, 4), ("finished", 0.03419, 1), ("interrupted", 0.24512, 1)],
    "search_pbt": [("finished", 3.1513, 6), ("finished", 3.78156, 6), ("finished", 3.02525, 6)],
    "search_restored": [
        ("finished", 3.22465, 4), ("finished", 0.03419, 1), ("finished", 0.24512, 1), ("finished", 0.08871, 1)
    ],
    "search_torn": [("finished", 3.1513, 6), ("finished", 3.78156, 6), ("finished", 3.02525, 6)],
}  # fmt: skip


def ends(grid: ResultGrid) -> list[tuple[str, float, int]]:
    return [(result.status, round(result.metrics["score"], 5), result.metrics["training_iteration"]) for result in grid]


@pytest.mark.parametrize("name", ENDS)
def test_reading(name: str) -> None:
    grid = load_grid(SEARCHES / name)
    assert ends(grid) == ENDS[name]
    check_configurations(grid)


def check_configurations(grid: ResultGrid) -> None:
    """A result has the configuration that its last row was made with."""
    for result in grid:
        assert result.config is not None
        assert result.metrics["score"] / result.metrics["training_iteration"] == pytest.approx(result.config["x"])


def objective(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    for step in range((checkpoint.to_dict()["i"] if checkpoint else 0) + 1, 7 if config.get("saves") else 5):
        session.report({"score": config["x"] * step}, checkpoint=Checkpoint.from_dict({"i": step}))


class Halving(Searcher):
    def __init__(self) -> None:
        super().__init__(metric="score", mode="max")
        self.x = 1.0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.x /= 2
        return {"x": self.x}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_text(str(self.x))

    def restore(self, checkpoint_path: str) -> None:
        self.x = float(Path(checkpoint_path).read_text())


@pytest.mark.parametrize("name", ENDS)
def test_replaying_leads_to_the_same_decisions(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(shutil.copytree(SEARCHES / name, tmp_path / "search"))
    journal = next(root.glob("experiment-*.jsonl"))
    before = journal.read_bytes()
    searcher = Halving() if name == "search_again" else None
    given = RunConfig(verbose=1, engine="inline")
    grid = Tuner.restore(root, objective, run_config=given, tune_config=TuneConfig(search_alg=searcher)).fit()
    assert "decides otherwise" not in capsys.readouterr().err
    assert journal.read_bytes().startswith(before[: before.rfind(b"\n") + 1]), "what was written has been changed"
    assert all(result.status == "finished" for result in grid)
    untouched = [end for end in ENDS[name] if end[0] == "finished"]
    assert ends(grid)[: len(untouched)] == untouched


def test_a_change_that_no_row_was_made_with_does_not_change_the_result(tmp_path: Path) -> None:
    root = Path(shutil.copytree(SEARCHES / "search_pbt", tmp_path / "search"))
    check_configurations(Tuner.restore(root, objective, run_config=RunConfig(verbose=0, engine="inline")).fit())


@pytest.mark.filterwarnings("ignore:The experiment was made with the trainable 'fragile'")
def test_a_saved_searcher_continues(tmp_path: Path) -> None:
    root = Path(shutil.copytree(SEARCHES / "search_again", tmp_path / "search"))
    given = RunConfig(verbose=0, engine="inline")
    tune = TuneConfig(search_alg=Halving(), num_samples=4)
    grid = Tuner.restore(root, objective, run_config=given, tune_config=tune).fit()
    assert [result.config["x"] for result in grid if result.config] == [0.5, 0.25, 0.125, 0.0625]
