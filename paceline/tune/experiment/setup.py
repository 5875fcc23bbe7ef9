"""The setup of a search: everything it is made of, checked and complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.air.config import RunConfig
from paceline.tune.schedulers.trial_scheduler import TrialScheduler
from paceline.tune.search.basic_variant import BasicVariantGenerator
from paceline.tune.search.paths import Found
from paceline.tune.search.searcher import Searcher
from paceline.tune.trainable.kinds import TrainableKind
from paceline.tune.tune_config import TuneConfig


@dataclass(frozen=True)
class SearchSetup:
    """What is tried out, how its configurations are found, and under which rules it runs."""

    kind: TrainableKind
    space: Mapping[str, Any]
    found: Found
    """What the space searches over."""
    tune: TuneConfig
    run_config: RunConfig
    searcher: Searcher
    scheduler: TrialScheduler
    seed: int
    """What the searcher and the scheduler draw from, where the user gave no seed."""

    @property
    def metric(self) -> str | None:
        return self.tune.metric if isinstance(self.tune.metric, str) else None

    @property
    def mode(self) -> str | None:
        return self.tune.mode if isinstance(self.tune.mode, str) else None

    @property
    def metrics(self) -> list[str]:
        """Everything that trials are judged by."""
        metric = self.searcher.metric or self.tune.metric
        return [metric] if isinstance(metric, str) else list(metric or [])

    @property
    def may_overlap(self) -> bool:
        """A trial may begin while the processes of another end: nobody learns from results, and nobody has asked for
        one trial after the other."""
        return isinstance(self.searcher, BasicVariantGenerator) and self.tune.max_concurrent_trials != 1

    @property
    def total(self) -> int | None:
        """How many trials there will be; None: without end."""
        if self.searcher.total_samples is not None:
            return self.searcher.total_samples
        return None if self.tune.num_samples < 0 else self.tune.num_samples
