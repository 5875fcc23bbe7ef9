"""JSON for pages, of whatever runs have in their records."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder(enc_hook=str)


def encode(document: Any) -> bytes:
    """NaN and infinities become null, as do integers beyond what JavaScript can read."""
    try:
        return _encoder.encode(document)
    except (UnicodeEncodeError, OverflowError):  # lone surrogates of odd file names; integers beyond 64 bit
        builtins = msgspec.to_builtins(document, str_keys=True, enc_hook=str)
        return json.dumps(_plain(builtins), separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return None
    return value
