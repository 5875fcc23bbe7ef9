"""The searcher of a Tuner that names none: grids point by point, everything else at random."""

from __future__ import annotations

import bisect
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from paceline.air.checks import check_bool, near_miss, warn_at_users_line, whole_number
from paceline.air.errors import ConfigError, RestoreError
from paceline.tune.search.domains import generator, index_of
from paceline.tune.search.searcher import Metric, Mode, Searcher, Suggestion, checked_points
from paceline.tune.search.space import values_in
from paceline.tune.search.variants import Found, Path, count_variants, find, path_text, variant


class BasicVariantGenerator(Searcher):
    """Grid search and random search.

    Each of `num_samples` passes runs the whole grid. Suggestion number n depends on the
    space, the seed and n alone: it can be made again, and more can be asked for later.

    points_to_evaluate: parameters to run first. Each takes the place of one pass; the grid of
        that pass leaves out the parameters that the point fixes, and what it does not name is drawn.
    max_concurrent: how many suggestions may be unfinished at a time; 0 is without limit.
    constant_grid_search: draw the random parameters once for each pass instead of for each
        point of the grid, so that the points can be compared.
    random_state: a seed, or a generator that one is drawn from.
    """

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: Any = None,
    ) -> None:
        super().__init__()
        check_bool(constant_grid_search, "constant_grid_search")
        self._points = checked_points(points_to_evaluate)
        self._max_concurrent = whole_number(max_concurrent, "max_concurrent", least=0, advice="0 is without limit.")
        self._constant_grid_search = constant_grid_search
        self._has_own_seed = random_state is not None
        if isinstance(random_state, int):
            self._seed = random_state
        else:
            self._seed = generator(random_state).getrandbits(63)
        self._next = 0
        self._unfinished: set[str] = set()
        self._use_space({}, 1, points=[])

    # Set up by the experiment

    def set_search_properties(self, metric: Metric, mode: Mode, config: dict[str, Any], **spec: Any) -> bool:
        """Take the space and num_samples; called again, it may raise num_samples."""
        num_samples = whole_number(spec.get("num_samples", 1), "num_samples", least=-1, advice="-1 is without end.")
        self._use_space(config or {}, num_samples, self._points)
        if 0 <= num_samples < len(self._points):
            warn_at_users_line(
                f"points_to_evaluate has {len(self._points)} points, of which num_samples={num_samples} leaves out "
                f"the last {len(self._points) - num_samples}: each point is one sample. Raise num_samples."
            )
        return self._adopt_goal(metric, mode)

    def _use_space(self, space: Mapping[str, Any], num_samples: int, points: Sequence[Mapping[str, Any]]) -> None:
        self._num_samples = num_samples
        self._found = find(space)
        self._grid = count_variants(self._found)
        self._fixed = [_fixed_by(point, self._found) for point in points]
        sizes = [count_variants(self._found, fixed) for fixed in self._fixed]
        self._point_ends = list(itertools.accumulate(sizes))
        """Below which number each point's suggestions lie."""

    def set_seed(self, seed: int) -> None:
        if not self._has_own_seed:
            self._seed = seed

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        self._max_concurrent = min(self._max_concurrent or max_concurrent, max_concurrent)
        return True

    @property
    def total_samples(self) -> int | None:
        if self._num_samples < 0:
            return None
        points = min(self._num_samples, len(self._fixed))
        return (self._point_ends[points - 1] if points else 0) + (self._num_samples - points) * self._grid

    # Ask and tell

    def suggest(self, trial_id: str) -> Suggestion:
        """The whole configuration, with the constants of the space in it."""
        total = self.total_samples
        if total is not None and self._next >= total:
            return self.FINISHED
        if self._max_concurrent and len(self._unfinished) >= self._max_concurrent:
            return None
        config = self._variant(self._next)
        self.remember(trial_id, config)
        return config

    def remember(self, trial_id: str, config: dict[str, Any]) -> None:
        self._next += 1
        self._unfinished.add(trial_id)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        self._unfinished.discard(trial_id)

    def _variant(self, number: int) -> dict[str, Any]:
        points = len(self._fixed)
        in_points = self._point_ends[-1] if points else 0
        if number < in_points:
            sample = bisect.bisect_right(self._point_ends, number)
            grid_number, fixed = number - (self._point_ends[sample - 1] if sample else 0), self._fixed[sample]
        else:
            sample, grid_number = divmod(number - in_points, self._grid)
            sample, fixed = sample + points, {}
        draw = sample if self._constant_grid_search else number
        rng = random.Random(f"{self._seed}/{draw}")
        return variant(self._found, grid_number, rng, fixed)[0]

    # Continuing an interrupted search

    def save(self, path: str) -> None:
        state = {"seed": self._seed, "suggested": self._next, "unfinished": sorted(self._unfinished)}
        FilePath(path).write_text(json.dumps(state), encoding="utf-8")

    def restore(self, path: str) -> None:
        try:
            state = json.loads(FilePath(path).read_text(encoding="utf-8"))
            self._seed, self._next = int(state["seed"]), int(state["suggested"])
            self._unfinished = set(state["unfinished"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RestoreError(f"{path} does not hold the state of a BasicVariantGenerator: {error!r}") from error


def _fixed_by(point: Mapping[str, Any], found: Found) -> dict[Path, Any]:
    """What a point fixes, by path. It may name constants as long as it does not change them."""
    values = values_in(found, point)
    for path, value in values.items():
        if path not in found.texts:
            name = path_text(path)
            raise ConfigError(
                f"points_to_evaluate has a value for {name!r}, which the search space does not search"
                f"{near_miss(name, list(found.texts.values()))}"
            )
        domain = found.domains.get(path)
        options = found.grids.get(path)
        if (domain and not domain.is_valid(value)) or (options and index_of(value, options) is None):
            warn_at_users_line(
                f"points_to_evaluate has {value!r} for {found.texts[path]!r}, which is not in {domain or options!r}. "
                "It is run as it is."
            )
    return values
