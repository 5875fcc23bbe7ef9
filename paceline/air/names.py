"""Names a user chooses that become one part of a path."""

from __future__ import annotations

import unicodedata

from paceline.air.errors import ConfigError

MAX_NAME_BYTES = 128
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_DEVICE_NAMES = frozenset(
    ["con", "prn", "aux", "nul", *(f"com{n}" for n in range(1, 10)), *(f"lpt{n}" for n in range(1, 10))]
)
"""Names that some systems take for devices: a run directory must survive being copied there."""


def safe_name(name: str, what: str) -> str:
    """Return `name` in its composed Unicode form, or refuse it saying why.

    Composing first makes two spellings of the same text the same directory.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{what} must be a string, not {type(name).__name__}: {name!r}")
    composed = unicodedata.normalize("NFC", name)
    reason = _objection(composed)
    if reason:
        raise ConfigError(
            f"{what} {_shortened(name)} {reason}. It becomes a directory name: use 1 to {MAX_NAME_BYTES} characters "
            "of A-Z a-z 0-9 . _ - or letters of any script, not starting with '-'."
        )
    return composed


def _objection(name: str) -> str:
    if not name:
        return "is empty"
    if name in (".", ".."):
        return "means a directory itself"
    if name.startswith("-"):
        return "starts with '-', which command line tools take for an option"
    if name.split(".")[0].lower() in _DEVICE_NAMES:
        return "is the name of a device on some systems"
    for character in name:
        if character not in _PLAIN and unicodedata.category(character)[0] not in "LM":
            return f"contains {character!r}"
    length = len(name.encode())
    return f"is {length} bytes long" if length > MAX_NAME_BYTES else ""


def _shortened(name: str) -> str:
    return repr(name) if len(name) <= 60 else repr(name[:60]) + "..."
