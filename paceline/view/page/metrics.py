"""GET /metrics of the page: the runs that are alive, how far they have come, and the server itself.

Names of runs and metrics are anybody's, and there may be any number of them: of each kind only so many become series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from starlette.routing import Route

from paceline.view.page.entries import Line
from paceline.view.page.state import PageState
from paceline.web import prometheus
from paceline.web.traffic import Traffic

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.metrics_core import GaugeMetricFamily

MOST_RUNS = 50
"""Live runs with series of their own: the newest."""
MOST_METRICS = 40
"""Of each of them."""


def metrics_route(state: PageState, traffic: Traffic) -> Route:
    """The route. A scrape looks at the runs as they are now."""
    return prometheus.metrics_route(traffic, lambda: page_metrics(state))


def page_metrics(state: PageState) -> Iterator[Metric]:
    """All series of the page; reads files."""
    state.look()
    lines = state.listing.lines()
    live = [line for line in lines if line.alive and line.kind in ("run", "trial")]
    yield from _counts(lines, len(live))
    live.sort(key=lambda line: line.started, reverse=True)
    yield from _progress(live[:MOST_RUNS])
    yield prometheus.gauge("paceline_page_streams", "Tabs that follow the runs.", state.streams)
    yield prometheus.gauge(
        "paceline_page_look_seconds", "How long it took to look for changes of runs.", state.listing.look_seconds
    )


def _counts(lines: list[Line], live: int) -> Iterator[Metric]:
    counted = prometheus.gauges("paceline_runs", "Runs, searches and trials by status.", "kind", "status")
    for (kind, status), count in sorted(Counter((line.kind, line.status) for line in lines).items()):
        counted.add_metric([kind, prometheus.shown(status)], count)
    yield counted
    yield prometheus.gauge("paceline_live_runs", "Runs and trials whose drivers are at work.", live)
    yield prometheus.gauge(
        "paceline_live_runs_left_out", "Live runs that have no series of their own.", max(live - MOST_RUNS, 0)
    )


def _progress(live: list[Line]) -> Iterator[Metric]:
    def gauges(name: str, help_text: str) -> GaugeMetricFamily:
        return prometheus.gauges(name, help_text, "id", "name", "trial_id")

    ranks = gauges("paceline_run_ranks", "Ranks of a live run.")
    iteration = gauges("paceline_run_iteration", "Rows of a live run, or the training_iteration that it reports.")
    seconds = gauges("paceline_run_seconds", "Seconds that a live run has trained.")
    attempts = gauges("paceline_run_attempts", "How often the workers of a live run were started.")
    size = gauges("paceline_run_checkpoint_bytes", "Size of the checkpoints that a live run keeps.")
    last = prometheus.gauges(
        "paceline_run_metric", "The last value of a metric of a live run.", "id", "name", "trial_id", "metric"
    )
    for line in live:
        labels = [line.id, prometheus.shown(line.name), prometheus.shown(line.trial_id)]
        ranks.add_metric(labels, line.workers)
        iteration.add_metric(labels, line.iteration)
        seconds.add_metric(labels, line.seconds)
        attempts.add_metric(labels, line.attempts)
        size.add_metric(labels, line.size)
        for metric, value in _last_values(line).items():
            last.add_metric([*labels, metric], value)
    yield from (ranks, iteration, seconds, attempts, size, last)


def _last_values(line: Line) -> dict[str, float]:
    """By the text of the label: two names that are shown alike would be one series twice, which Prometheus rejects."""
    values: dict[str, float] = {}
    for name, value in line.metrics.items():
        if len(values) == MOST_METRICS:
            break
        values.setdefault(prometheus.shown(name), float("nan") if value is None else value)
    return values
