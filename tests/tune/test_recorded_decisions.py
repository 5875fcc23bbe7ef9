"""Journals that an earlier version wrote lead schedulers and stoppers to the decisions that were made then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.air import RunConfig
from paceline.tune import ResultGrid, Tuner
from tests.tune.deciding import FIXTURES, SCHEDULERS, climb, listening, stopping


def replayed(place: Path, case: str) -> tuple[ResultGrid, list[Any]]:
    """What was reached and decided; no trial is run."""
    told: list[Any] = []
    config = RunConfig(verbose=0, stop=stopping() if case == "stoppers" else None)
    with listening(told):
        grid = Tuner.restore(place, climb, run_config=config, resume_unfinished=False).fit()
    return grid, told


@pytest.mark.parametrize("case", SCHEDULERS)
def test_journal_of_an_earlier_version_replays_to_the_same_decisions(tmp_path: Path, case: str) -> None:
    place = Path(shutil.copytree(FIXTURES / case, tmp_path / case))
    expected = json.loads((place / "decisions.json").read_text())
    grid, told = replayed(place, case)
    assert told == expected["decisions"]
    assert [[outcome.status, outcome.metrics["training_iteration"]] for outcome in grid.outcomes] == expected["ends"]


@pytest.mark.parametrize("case", SCHEDULERS)
def test_journal_that_was_cut_short_leads_to_the_same_decisions_up_to_there(tmp_path: Path, case: str) -> None:
    place = Path(shutil.copytree(FIXTURES / case, tmp_path / case))
    expected = json.loads((place / "decisions.json").read_text())["decisions"]
    (journal,) = place.glob("experiment-*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    half = lines[: len(lines) // 2]
    journal.write_bytes(b"".join(half))
    rows = sum(b'"kind":"row"' in line for line in half)
    _, told = replayed(place, case)  # trials that were not created before the cut are, and run
    assert told[:rows] == expected[:rows]
