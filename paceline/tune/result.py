"""The old path of the names that results and their files have."""

from __future__ import annotations

from paceline.air.constants import (
    DEFAULT_METRIC,
    DONE,
    EXPR_ERROR_FILE,
    EXPR_PARAM_FILE,
    EXPR_PROGRESS_FILE,
    EXPR_RESULT_FILE,
    TRAINING_ITERATION,
)

__all__ = [
    "DEFAULT_METRIC",
    "DONE",
    "EXPR_ERROR_FILE",
    "EXPR_PARAM_FILE",
    "EXPR_PROGRESS_FILE",
    "EXPR_RESULT_FILE",
    "TIME_TOTAL_S",
    "TRAINING_ITERATION",
]

TIME_TOTAL_S = "time_total_s"
