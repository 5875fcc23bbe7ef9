"""Settings as plain data, so that a restored run or search has those that it had."""

from __future__ import annotations

import json
from typing import Any

from paceline.air.secrets import masked


def plain_config(config: Any) -> Any:
    """A configuration as it is written down: without its secrets; None if it is not plain JSON."""
    return as_json(masked(config))


def as_json(value: Any) -> Any:
    """The value if it is plain JSON, else None."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return None
