"""A run in a notebook, as HTML: bounded, escaped, and with the ranks that matter."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

from paceline.air.result import Result
from paceline.run.curves import Curves
from paceline.run.observers import RankState
from paceline.run.progress_html import RunView, run_html
from paceline.run.records import RankUse
from paceline.run.timing import StepTimes


def view(row: dict[str, Any], **changes: Any) -> RunView:
    curves = Curves()
    curves.add({**row, "training_iteration": 1})
    curves.add({**row, "training_iteration": 2})
    return RunView("<i>run</i>", ["2 workers"], row, curves, **changes)


def words(seen: RunView) -> str:
    found = ElementTree.fromstring(f"<div>{run_html(seen)}</div>")
    assert not list(found.iter("i"))
    return " ".join(" ".join(found.itertext()).split())


def test_it_runs() -> None:
    text = words(view({"loss": 0.5, "<i>": "<i>"}))
    assert text.startswith("<i>run</i> · running · 2 workers loss 0.5 0.5 1 2 iteration")
    assert "metric last loss 0.5 <i> <i>" in text


def test_many_metrics_are_counted() -> None:
    assert "… and 8 more metrics" in words(view({f"m{number}": number for number in range(20)}))


def test_nothing_is_reported_yet() -> None:
    empty = RunView("run", ["2 workers"], {}, Curves())
    assert words(empty) == "run · running · 2 workers"


def test_ranks_with_what_they_printed_last() -> None:
    ranks = [RankState(0, 3, "running"), RankState(1, 2, "failed")]
    text = words(view({}, ranks=ranks, last_lines={1: "<b>oops</b>"}))
    names = "rank worker iteration step data wait CPU memory last output"
    assert text.endswith(f"{names} 0 running 3 1 failed 2 <b>oops</b>")


def test_ranks_with_what_was_measured() -> None:
    ranks = [RankState(0, 3, "running", StepTimes(2, 50_000, 20_000), RankUse(0, 0.98, 120_000_000))]
    assert words(view({}, ranks=ranks)).endswith("0 running 3 25 ms 40% 98% 120 MB")


def test_of_many_ranks_those_that_are_behind_are_shown() -> None:
    ranks = [RankState(rank, 10 if rank != 77 else 9, "failed" if rank == 50 else "running") for rank in range(100)]
    text = words(view({}, ranks=ranks))
    assert "last output 50 failed 10 77 running 9 0 running 10" in text
    assert "and 84 more workers, further ahead" in text


def test_the_end() -> None:
    result = Result(status="failed", how_to_continue="Trainer.restore('<i>').fit()")
    text = words(view({}, result=result))
    assert "failed · 2 workers" in text
    assert text.endswith("to continue Trainer.restore('<i>').fit()")
