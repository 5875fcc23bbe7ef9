"""Settings of a RunConfig that have several forms: when to stop, and where output is copied to."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from paceline.air.checks import is_number
from paceline.air.constants import EXPR_ERROR_FILE, EXPR_PARAM_FILE, EXPR_PROGRESS_FILE, EXPR_RESULT_FILE
from paceline.air.errors import ConfigError
from paceline.air.metrics import flattened

_OWN_FILES = frozenset(
    [EXPR_ERROR_FILE, EXPR_PARAM_FILE, EXPR_PROGRESS_FILE, EXPR_RESULT_FILE, "lock", "logs", "origin"]
)

_OWN_NAMES = re.compile(r"\..*|.*\.jsonl|(checkpoint|rank)_\d+")
"""Hidden files, journals, and directories of checkpoints and workers."""


def output_files(given: Any) -> tuple[str, str] | None:
    """The files that `log_to_file` asks for: for standard output and for standard error; None: it asks for none."""
    if given is None or given is False:
        return None
    names = ["stdout", "stderr"] if given is True else [given, given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or len(names) != 2 or not all(map(_is_file_name, names)):
        raise ConfigError(
            f"log_to_file is {given!r}: give True, a file name such as 'output.log', or a pair such as ('out', 'err'). "
            "The files are in the trial directory, so they have no path."
        )
    for name in names:
        if name in _OWN_FILES or _OWN_NAMES.fullmatch(name):
            raise ConfigError(f"log_to_file is {given!r}: {name!r} is a file of the run itself. Choose another name.")
    return (names[0], names[1])


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


def check_stop(stop: Any) -> None:
    """Reject what cannot be a stop criterion."""
    if stop is None:
        return
    if isinstance(stop, Mapping):
        for metric, threshold in flattened(stop).items():
            if not isinstance(metric, str) or not (is_number(threshold) or isinstance(threshold, bool)):
                raise ConfigError(f"stop has the item {metric!r}: {threshold!r}. Use metric names and numbers.")
        return
    if isinstance(stop, type):
        raise ConfigError(f"stop is the class {stop.__name__}: make an object of it with (...).")
    if not callable(stop):
        raise ConfigError(
            f"stop is {stop!r}: use a dict such as {{'training_iteration': 10}}, a function of (trial_id, result), "
            "or a Stopper (several of them: CombinedStopper)."
        )
    try:
        signature = inspect.signature(stop)
    except ValueError:  # some callables of extension modules do not tell
        return
    try:
        signature.bind("trial_id", {})
    except TypeError:
        raise ConfigError(f"stop is called with (trial_id, result), but it takes {signature}.") from None
