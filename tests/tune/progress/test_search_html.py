"""A search in a notebook, as HTML."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from paceline.run.display import Display
from paceline.tune.progress.progress import ExperimentProgress
from paceline.tune.progress.view import ExperimentEnd
from tests.tune.progress.made_up import MadeUpExperiment
from tests.tune.progress.test_frame import busy_experiment


class Shown(Display):
    speaks = True


def words(experiment: MadeUpExperiment, end: ExperimentEnd | None = None) -> str:
    progress = ExperimentProgress(Shown())
    progress.started(experiment.view)
    if end is not None:
        progress.finished(end)
    found = ElementTree.fromstring(f"<div>{progress.html()}</div>")
    assert not list(found.iter("b"))
    return " ".join(" ".join(found.itertext()).split())


def test_a_busy_search() -> None:
    text = words(busy_experiment(scheduler_info=lambda: "<b>ASHA</b>: 12 stopped"))
    assert text.startswith("exp · running · 38/60 trials · 16 running · 6 paused · 1 pending · 6 failed · ")
    assert "<b>ASHA</b>: 12 stopped best loss so far" in text
    assert "trial status lr act loss iter time accuracy nested/f1 ★00003 RUNNING 0.42857 漢字の活性化 0.001 1" in text
    assert text.endswith("… 4 more running, 6 more paused, 3 more failed")


def test_columns_that_are_left_out_are_named() -> None:
    experiment = MadeUpExperiment()
    trial = experiment.add(**{f"p{number}": number for number in range(20)})
    experiment.become(trial, "RUNNING")
    experiment.report(trial, loss=1, accuracy=0.5)
    assert "columns left out: p8, p9, p10" in words(experiment)


def test_ten_thousand_trials_make_a_short_page() -> None:
    experiment = busy_experiment(10_000)
    progress = ExperimentProgress(Shown())
    progress.started(experiment.view)
    for _ in range(500):
        page = progress.html()
    assert len(page) < 60_000


def test_the_end() -> None:
    experiment = MadeUpExperiment(total=1)
    experiment.ended(0.5, lr=0.1)
    text = words(experiment, ExperimentEnd("interrupted", "Tuner.restore('<b>').fit()"))
    assert "exp · interrupted · 1/1 trial" in text
    assert text.endswith("to continue Tuner.restore('<b>').fit()")


def test_no_trials_yet() -> None:
    assert words(MadeUpExperiment(total=None)).startswith("exp · running · 0 trials ended · ")
