"""The report is looked at in tests/cli/test_export.py; here it is long, and has many metrics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session
from paceline.run.records import Ended
from paceline.train import DataParallelTrainer
from paceline.view.frames import run_frame
from paceline.view.report_html import MOST_CHARTS, run_report, search_report
from tests.view import journals
from tests.view.test_searches import search, trial


def run(tmp_path: Path, config: dict[str, Any]) -> str:
    def steps(config: dict[str, Any]) -> None:
        for step in range(config["steps"]):
            many = {f"metric_{number}": step for number in range(config.get("metrics", 0))}
            session.report({"loss": math.sin(step / 50), "gap": math.nan if step % 2 else 1.0, **many})

    return (
        DataParallelTrainer(
            steps,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(storage_path=str(tmp_path), verbose=0, engine="inline"),
        )
        .fit()
        .path
    )


def test_a_long_curve_is_short_in_the_file(tmp_path: Path) -> None:
    text = run_report(run(tmp_path, {"steps": 20_000}))
    assert "20,000 reports" in text
    assert len(text) < 300_000
    assert "highest 1, " in text


def test_metrics_beyond_the_limit_are_named(tmp_path: Path) -> None:
    text = run_report(run(tmp_path, {"steps": 2, "metrics": MOST_CHARTS + 5}))
    assert text.count("<figure>") == MOST_CHARTS
    assert "7 more metrics" in text
    assert f"metric_{MOST_CHARTS + 4}" in text


def test_a_run_without_rows_has_no_curves(tmp_path: Path) -> None:
    text = run_report(run(tmp_path, {"steps": 0}))
    assert "Curves" not in text
    assert "finished" in text


@pytest.mark.parametrize("moment", [1e300, math.inf, -math.inf, math.nan])
def test_times_that_cannot_be_are_no_reason_to_fail(tmp_path: Path, moment: float) -> None:
    """A journal may come from anywhere."""
    records = [
        msgspec.structs.replace(journals.header(), time=moment),
        msgspec.structs.replace(journals.attempt(start_time_s=moment), time=moment),
        msgspec.structs.replace(journals.row(1, {"loss": 0.25}), stamp=moment, elapsed=moment),
        Ended(status="finished", time=moment),
    ]
    path = str(journals.write(tmp_path / "run", records))
    assert "0.25" in run_report(path)
    assert list(run_frame(path)["loss"]) == [0.25]


@pytest.mark.parametrize("attribute", [None, "loss"])
def test_checkpoints_have_a_score_only_if_they_are_ranked(tmp_path: Path, attribute: str | None) -> None:
    def save() -> None:
        session.report({"loss": 0.5}, checkpoint=Checkpoint.from_dict({"step": 1}))

    kept = CheckpointConfig(checkpoint_score_attribute=attribute)
    settings = RunConfig(storage_path=str(tmp_path), verbose=0, engine="inline", checkpoint_config=kept)
    trainer = DataParallelTrainer(save, scaling_config=ScalingConfig(num_workers=1), run_config=settings)
    text = run_report(trainer.fit().path)
    assert "Checkpoints that are kept" in text
    assert (">score</th>" in text) == (attribute is not None)


def test_there_are_no_headings_without_content(tmp_path: Path) -> None:
    path = journals.write(tmp_path / "run", [journals.header(), journals.attempt(), Ended(status="finished")])
    text = run_report(str(path))
    for title in ("Configuration", "Last metrics"):
        assert f"<h2>{title}</h2>" not in text


def test_text_of_programs_has_fonts_of_every_system(tmp_path: Path) -> None:
    text = run_report(str(journals.write(tmp_path / "run", [journals.header(), journals.attempt()])))
    assert '"DejaVu Sans Mono", Menlo, Consolas, monospace' in text


def test_a_search_with_failed_trials_says_so_in_its_status() -> None:
    trials = [trial(number, {"score": 1.0}) for number in range(3)]
    assert '<strong class="finished">finished</strong></td>' in search_report(search(trials))
    trials[0].status = trials[2].status = "failed"
    assert '<strong class="finished">finished</strong>, 2 failed</td>' in search_report(search(trials))
