"""What the attributes of `ray` are under the alias."""

from __future__ import annotations

import importlib
from typing import Any

from paceline.compat.ray_alias import home_of

_ABSENT = {
    "rllib": "RLlib needs the real Ray: port the script (paceline port), and run it without the alias, with RLTrainer.",
    "serve": "write paceline.serve, or `paceline serve <run>`: one model behind HTTP.",
    "workflow": "call the steps of the workflow one after the other.",
}


def member(name: str) -> Any:
    """`ray.<name>`."""
    if name in _ABSENT:
        raise AttributeError(f"ray.{name} is not in paceline: {_ABSENT[name]}")
    home = None if name.startswith("__") else home_of(name)
    return getattr(importlib.import_module("paceline"), name) if home is None else importlib.import_module(home)
