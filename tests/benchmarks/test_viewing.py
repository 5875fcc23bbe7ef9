"""The runs that viewers are measured with: paceline reads them as if they had been trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import view_workload as workload
from benchmarks.harness import OURS, ROOT
from benchmarks.viewers import Data, Paceline
from paceline.view import dash
from paceline.view.catalog import find
from paceline.view.series import RunSeries

TRIALS, ROWS = 4, 60


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bench")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "BENCH_PLACE": str(place), "BENCH_OUT": str(place / "out.json")}
    command = [sys.executable, str(OURS / "view_data.py"), str(place / "runs"), str(TRIALS), str(ROWS)]
    subprocess.run(command, check=True, env=env, timeout=120)
    assert json.loads((place / "out.json").read_text())["bytes"] > 0
    return place / "runs"


def test_the_search_has_its_trials(root: Path) -> None:
    (search,) = find(root).searches
    assert (search.name, search.status, search.num_samples) == (workload.SEARCH, "finished", TRIALS)
    for trial in search.trials:
        expected = workload.trial(trial.number)
        assert (trial.status, trial.params) == ("finished", expected.params)
        assert trial.reached.iteration == workload.ROWS_PER_TRIAL
        assert trial.reached.metrics["loss"] == expected.values[-1, 0]


def test_the_long_run_has_its_rows(root: Path) -> None:
    (run,) = find(root).runs
    assert (run.name, run.status, run.reached.iteration) == (workload.LONG_RUN, "finished", ROWS)
    curves = RunSeries(run.path)
    assert curves.refresh() == ROWS
    table = np.column_stack([curves.column(name) for name in workload.METRICS])
    np.testing.assert_array_equal(table, workload.long_run(ROWS))
    assert list(Path(run.path).glob("events.out.tfevents.*"))


def test_the_clock_stops_when_trials_are_on_the_screen(root: Path, tmp_path: Path, no_process_left: None) -> None:
    pytest.importorskip("playwright")
    from tests.view.browsing import chromium

    with chromium() as browser, dash(root, port=0, blocking=False) as server:
        page = browser.new_page(locale="en-US")
        site: Any = SimpleNamespace(
            url=server.url, token=server.token, script=SimpleNamespace(started=time.monotonic())
        )
        assert Paceline(tmp_path).see_list(page, site, Data(TRIALS, ROWS, root)) > 0
        assert page.locator(".row.trial[data-id]").count() == TRIALS
        page.close()
