"""GET /metrics of the page, read back with Prometheus' own parser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline import train
from paceline.air import RunConfig, ScalingConfig
from paceline.train import DataParallelTrainer
from paceline.view.page import metrics
from tests.view.journals import attempt, header, row, write
from tests.view.page.paging import Page, showing
from tests.web.client import until

HOSTILE = 'los"s\\\n\x1b[31m{a="b"} 7\n# TYPE x'
Series = dict[str, list[tuple[dict[str, str], float]]]

_in_the_run: list[Callable[[], None]] = []
"""What the training function below does between its reports."""


def scraped(page: Page) -> Series:
    answer = page.ask("GET", "/metrics")
    assert answer.status == 200, answer.body
    series: Series = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            assert all(sample.labels != labels for labels, _ in series.get(sample.name, ())), "a series appears twice"
            series.setdefault(sample.name, []).append((sample.labels, sample.value))
    return series


def report_and_look(config: dict[str, Any]) -> None:
    train.report({"loss": 0.5, "nested": {"accuracy": 0.25}, HOSTILE: 3, "text": "words", "broken": float("nan")})
    for look in _in_the_run:
        look()


def a_live_run(root: Path, name: str, look: Callable[[], None]) -> None:
    """A real run that is looked at between its first row and its end."""
    trainer = DataParallelTrainer(
        report_and_look,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name=name, storage_path=str(root), engine="inline"),
    )
    _in_the_run[:] = [look]
    try:
        trainer.fit()
    finally:
        _in_the_run.clear()


def test_a_live_run(tmp_path: Path) -> None:
    seen: list[Series] = []

    def look() -> None:
        until(lambda: "paceline_run_metric" in scraped(page))
        seen.append(scraped(page))

    write(tmp_path / "exp" / "killed", [header(), attempt(), row(1, {"loss": 1.0})])
    with showing(tmp_path) as page:
        a_live_run(tmp_path, "live", look)
        (series,) = seen
        assert series["paceline_live_runs"] == [({}, 1)]
        ((labels, iteration),) = series["paceline_run_iteration"]
        assert (labels["name"], iteration) == ("live", 1)
        assert series["paceline_run_ranks"] == series["paceline_run_attempts"] == [(labels, 1)]
        values = {each["metric"]: value for each, value in series["paceline_run_metric"]}
        assert values["loss"] == 0.5
        assert values["nested/accuracy"] == 0.25
        assert [name for name in values if name.startswith("los") and name != "loss"] == [
            'los"s\\\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[31m{a="b"} 7\N{REPLACEMENT CHARACTER}# TYPE x'
        ]
        assert "text" not in values
        until(lambda: scraped(page)["paceline_live_runs"] == [({}, 0)])
        series = scraped(page)
        assert "paceline_run_metric" not in series
        counts = {(each["kind"], each["status"]): value for each, value in series["paceline_runs"]}
        assert counts == {("run", "finished"): 1, ("run", "killed"): 1}


def test_only_so_many_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_METRICS", 2)
    monkeypatch.setattr(metrics, "MOST_RUNS", 0)
    seen: list[Series] = []

    def look() -> None:
        until(lambda: scraped(page)["paceline_live_runs"] == [({}, 1)])
        seen.append(scraped(page))
        monkeypatch.setattr(metrics, "MOST_RUNS", 1)
        until(lambda: "paceline_run_metric" in scraped(page))
        seen.append(scraped(page))

    with showing(tmp_path) as page:
        a_live_run(tmp_path, "live", look)
    none, some = seen
    assert "paceline_run_metric" not in none
    assert none["paceline_live_runs_left_out"] == [({}, 1)]
    assert len(some["paceline_run_metric"]) == 2
    assert some["paceline_live_runs_left_out"] == [({}, 0)]


def test_names_that_are_shown_alike_are_one_series() -> None:
    line = metrics.Line(id="x", kind="run", metrics={"a\n": 1.0, "a\r": 2.0, "b" * 300: 3.0, "b" * 301: 4.0})
    assert list(metrics._last_values(line).values()) == [1.0, 3.0]


def test_streams_requests_and_the_server(tmp_path: Path) -> None:
    write(tmp_path / "exp" / "run", [header(), attempt(), row(1, {"loss": 1.0})])
    with showing(tmp_path) as page:
        identifier = page.id_of("exp/run")
        for _ in range(3):
            page.get(f"run/{identifier}")
        assert page.ask("GET", "/metrics", token=None).status == 401
        with page.stream(list="") as events:
            events.next("ping")
            series = scraped(page)
        assert series["paceline_page_streams"] == [({}, 1)]
        requests = {(each["route"], each["status"]): value for each, value in series["paceline_http_requests_total"]}
        assert requests["/api/run/{id}", "200"] == 3
        assert requests["/api/live", "200"] == 1
        assert requests["/metrics", "401"] == 1
        assert series["process_resident_memory_bytes"][0][1] > 1 << 20
        assert series["paceline_http_connections"][0][1] >= 1
