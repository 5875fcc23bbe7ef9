"""Values of options that several commands take."""

from __future__ import annotations

import argparse

LONGEST_S = 86400.0


def seconds(text: str) -> float:
    """A time to wait. NaN would be waited for without end."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.1 <= found <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to {LONGEST_S:g}")
    return found
