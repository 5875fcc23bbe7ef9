"""Environments as bytes, and how one differs from another: variables need not be text, and most never change."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

Environment = dict[bytes, bytes]


def current() -> Environment:
    return dict(os.environb)


def with_variables(environment: Environment, variables: Mapping[str, str]) -> Environment:
    """The environment with more variables in it."""
    return {**environment, **{os.fsencode(name): os.fsencode(value) for name, value in variables.items()}}


def difference(before: Environment, after: Environment) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """What to set and what to remove to get from one to the other."""
    changed = [item for item in after.items() if before.get(item[0]) != item[1]]
    return changed, [name for name in before if name not in after]


def change(changed: Iterable[tuple[bytes, bytes]], removed: Iterable[bytes]) -> None:
    """Change the environment of this process."""
    for name in removed:
        os.environb.pop(name, None)
    for name, value in changed:
        os.environb[name] = value
