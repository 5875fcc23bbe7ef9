"""Checks of a RunConfig: its name, when to stop, and where output is copied to."""

from __future__ import annotations

import inspect
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from paceline.air.checks import is_number
from paceline.air.constants import EXPR_ERROR_FILE, EXPR_PARAM_FILE, EXPR_PROGRESS_FILE, EXPR_RESULT_FILE
from paceline.air.errors import ConfigError
from paceline.air.metrics import flattened

MAX_NAME_BYTES = 128
_UNFIT = {"Cc": "control character", "Cs": "lone surrogate", "Zl": "line separator", "Zp": "paragraph separator"}
"""Unicode categories of what breaks lines of a log, or cannot be written as UTF-8."""
_OWN_FILES = frozenset(
    [EXPR_ERROR_FILE, EXPR_PARAM_FILE, EXPR_PROGRESS_FILE, EXPR_RESULT_FILE, "lock", "logs", "origin"]
)

_OWN_NAMES = re.compile(r"\..*|.*\.jsonl|(checkpoint|rank)_\d+")
"""Hidden files, journals, and directories of checkpoints and workers."""


def safe_name(name: str, what: str) -> str:
    """Return `name` in its composed Unicode form, or raise ConfigError with the reason why it cannot be a directory.

    Composing first makes two spellings of the same text the same directory.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{what} must be a string, not {type(name).__name__}: {name!r}")
    composed = unicodedata.normalize("NFC", name)
    reason = _objection(composed)
    if reason:
        raise ConfigError(
            f"{what} {_shortened(name)} {reason}. It becomes a directory name: use 1 to {MAX_NAME_BYTES} bytes of any "
            "characters except '/' and control characters, not starting with '.'."
        )
    return composed


def _objection(name: str) -> str:
    if not name:
        return "is empty"
    for character in name:
        if character == "/":
            return "contains '/'"
        if kind := _UNFIT.get(unicodedata.category(character)):
            return f"contains the {kind} {character!r}"
    if name.startswith("."):
        return "starts with '.', which hides a directory or means another one"
    length = len(name.encode())
    return f"is {length} bytes long" if length > MAX_NAME_BYTES else ""


def _shortened(name: str) -> str:
    return repr(name) if len(name) <= 60 else repr(name[:60]) + "..."


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
