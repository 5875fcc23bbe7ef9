"""Old path: the configurations of a space without a search around them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.air.absent import advise
from paceline.tune.search.paths import Path, find
from paceline.tune.search.sample import grid_search
from paceline.tune.search.samplers import generator
from paceline.tune.search.variants import count_variants, variant

__all__ = ["count_variants", "generate_variants", "grid_search"]


def generate_variants(
    unresolved_spec: Mapping[str, Any], constant_grid_search: bool = False, random_state: Any = None
) -> Iterator[tuple[dict[Path, Any], dict[str, Any]]]:
    """Each point of the grid once, the rest drawn at random: what was chosen, by path, and the configuration.

    constant_grid_search: draw the random parameters once for all points. random_state: a seed, or a generator.
    """
    found, rng = find(unresolved_spec), generator(random_state)
    drawn_once = rng.getrandbits(64)
    for number in range(count_variants(unresolved_spec, found=found)):
        draws = random.Random(drawn_once) if constant_grid_search else rng
        config, chosen = variant(unresolved_spec, number, draws, found=found)
        yield {found.paths[name]: value for name, value in chosen.items()}, config


_SPACE = "generate_variants(space) yields the chosen values by path, and the configuration with them"
advise(
    __name__,
    {
        **dict.fromkeys(("assign_value", "format_vars", "parse_spec_vars"), _SPACE),
        "RecursiveDependencyError": "parameters that depend on each other raise paceline.air.errors.ConfigError",
    },
)
