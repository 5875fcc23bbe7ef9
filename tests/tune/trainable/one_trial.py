"""Runs one trial of a trainable as a search does, without the search."""

from __future__ import annotations

from typing import Any

from paceline.air.config import RunConfig
from paceline.air.result import Result
from paceline.engine.choose import choose_engine
from paceline.run.drive import drive
from paceline.run.run import Run
from paceline.tune.trainable.kinds import TrainableKind, kind_of


def run_trial(
    trainable: Any,
    config: dict[str, Any] | None = None,
    *,
    checkpoint_every: int | None = None,
    raise_on_error: bool = True,
    engine: str | None = "inline",
    **run_config: Any,
) -> Result:
    """What is not named here belongs to RunConfig. In this process, unless a process of its own is the subject."""
    kind = trainable if isinstance(trainable, TrainableKind) else kind_of(trainable)
    spec = kind.run_spec(config or {}, RunConfig(**{"verbose": 0, **run_config}), checkpoint_every)
    return drive(Run.open(spec, choose_engine(engine)), raise_on_error)
