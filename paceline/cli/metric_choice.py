"""Which metric a list shows of a run that does not say which one matters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from paceline.air.metrics import flattened

_COUNTER = re.compile(
    r"(global_?|train(ing)?_?|num_?|n_?|total_?|current_?)*"
    r"(epochs?|steps?|iters?|iterations?|batch(es)?|batch_idx|rounds?|samples|examples|tokens|episodes|timesteps.*)"
    r"(_this_iter|_seen|_done|_num|_idx|_index|_count)?"
    r"|.*_total|time|times?_.*|.*_time|.*_time_s|timestamp|.*_seconds|.*_per_s(ec(ond)?)?|lr|learning_rate"
)
"""Names of what counts or measures how long training took, and of settings that are reported along with metrics."""


def default_metric(metrics: Mapping[str, Any], iteration: float) -> str | None:
    """A loss, or else the first float, or else the first integer that is not a counter; None if all are counters."""
    numbers = {
        name: value
        for name, value in flattened(metrics).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and not _counts(name, value, iteration)
    }
    losses = (name for name in numbers if "loss" in _last(name))
    floats = (name for name, value in numbers.items() if isinstance(value, float))
    return next(losses, None) or next(floats, None) or next(iter(numbers), None)


def metric_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of all metrics, each once."""
    return list(dict.fromkeys(name for metrics in rows for name in flattened(metrics)))


def _counts(name: str, value: float, iteration: float) -> bool:
    """By its name; or it is an integer as high as the number of reports, from 0 or from 1."""
    is_count = isinstance(value, int) and iteration > 1 and value in (iteration, iteration - 1)
    return is_count or _COUNTER.fullmatch(_last(name)) is not None


def _last(name: str) -> str:
    """Of a nested metric the last part, which says what it is."""
    return name.rpartition("/")[2].lower()
