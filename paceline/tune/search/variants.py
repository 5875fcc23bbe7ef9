"""The variants of a search space: its grid, point by point, the rest drawn at random."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.tune.search.completion import completed
from paceline.tune.search.paths import Found, Path, find


def count_variants(
    space: Mapping[str, Any], fixed: Mapping[Path, Any] | None = None, found: Found | None = None
) -> int:
    """How many points the grid has, leaving out parameters that are fixed; 1 without a grid."""
    found = find(space) if found is None else found
    return math.prod(len(values) for path, values in found.grids.items() if not fixed or path not in fixed)


def variant(
    space: Mapping[str, Any],
    grid_number: int,
    random_state: Any = None,
    fixed: Mapping[Path, Any] | None = None,
    found: Found | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One configuration and, by name, what was chosen for it.

    Grid points are numbered as nested loops would visit them, the last parameter changing fastest.
    """
    found = find(space) if found is None else found
    values = dict(fixed or {})
    for path, options in reversed(found.grids.items()):
        if path not in values:
            grid_number, position = divmod(grid_number, len(options))
            values[path] = options[position]
    config, chosen = completed(space, values, found, random_state)
    return config, {text: chosen[path] for path, text in found.texts.items()}
