"""Names a user chooses that become one part of a path."""

from __future__ import annotations

import unicodedata

from paceline.air.errors import ConfigError

MAX_NAME_BYTES = 128
_UNFIT = {"Cc": "control character", "Cs": "lone surrogate", "Zl": "line separator", "Zp": "paragraph separator"}
"""Unicode categories of what breaks lines of a log, or cannot be written as UTF-8."""


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
