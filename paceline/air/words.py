"""How values, counts, times and sizes are written for people."""

from __future__ import annotations

import math
import re
import time

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[PX^_][^\x1b\n]*(?:\x1b\\)?|.)?"
)
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LONGEST_VALUE = 40
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(i?))?(?:b|bytes?)?", re.IGNORECASE)


def printable(text: str) -> str:
    """The text without escape sequences and control characters: it can't move the cursor or retitle a window."""
    return _CONTROL_CHARACTER.sub("", _ESCAPE_SEQUENCE.sub("", text))


def counted(count: int, singular: str, plural: str = "") -> str:
    """``1 worker``, ``2 workers``, ``1,000 workers``."""
    return f"{count:,} {singular}" if count == 1 else f"{count:,} {plural or singular + 's'}"


def value_text(value: object) -> str:
    """A metric or a parameter in a few characters; one that is cut ends in ``…``."""
    if isinstance(value, float):
        return f"{value:.5g}"
    text = str(value).replace("\n", " ")
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def moment_text(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Seconds since the epoch as the date and time on this machine; ``?`` if no clock can show them."""
    try:
        return time.strftime(form, time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # a file may say anything
        return "?"


def duration_text(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def brief_text(seconds: float) -> str:
    """A short time, such as that of a training step, to two or three digits."""
    if seconds >= 0.9995:
        return f"{seconds:.3g} s" if seconds < 100 else duration_text(seconds)
    milliseconds = 1000 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"


def size_text(size: int) -> str:
    """``512 bytes``, ``1.5 kB``, ``20 MB``: powers of 1,000."""
    if size < 1000:
        return counted(size, "byte")
    amount = float(size)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.5:
            return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"
    return f"{amount / 1000:,.1f} TB"


def bytes_of(text: str) -> int | None:
    """The size that a person wrote: ``24GiB`` (powers of 1,024), ``80 GB`` (powers of 1,000), or just bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** (" kmgt".index(unit.lower()) if unit else 0))
