"""What a model's server counts beside its requests, and how /metrics shows it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline.serve.batcher import Batcher
from paceline.serve.model import ServedModel
from paceline.web import prometheus

if TYPE_CHECKING:
    from prometheus_client import Metric


def model_metrics(served: ServedModel, batcher: Batcher) -> Iterator[Metric]:
    """The series of a model and of the queue in front of it."""
    model, counts = served.current, batcher.counts
    yield prometheus.info(
        "paceline_serve_model_info",
        "The model that is served.",
        name=served.name,
        predictor=type(model.predictor).__name__,
        checkpoint=model.origin,
    )
    if model.number is not None:
        yield prometheus.gauge("paceline_serve_model_number", "The n of checkpoint_00000n.", model.number)
    yield prometheus.gauge(
        "paceline_serve_model_age_seconds", "Since the model was loaded.", max(time.time() - model.loaded_at, 0.0)
    )
    yield prometheus.counter("paceline_serve_reloads", "Models that took the place of another.", served.reloads)
    yield prometheus.counter(
        "paceline_serve_failed_reloads", "Models that could not be loaded, so that the old one stayed.", served.failures
    )
    yield prometheus.counter("paceline_serve_rows", "Rows that were predicted.", counts.rows)
    yield prometheus.histogram("paceline_serve_batch_rows", "Rows that were predicted together.", counts.batch_rows)
    yield prometheus.histogram(
        "paceline_serve_batch_seconds", "How long the model took for a batch.", counts.batch_seconds
    )
    yield prometheus.gauge("paceline_serve_waiting_requests", "Requests that wait for the model.", batcher.waiting)
    yield prometheus.gauge("paceline_serve_waiting_rows", "Rows of these requests.", batcher.waiting_rows)
