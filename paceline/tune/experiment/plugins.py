"""Searchers and schedulers as plain data: their class, if it is one of ours, and the arguments they were made with.

Code is never read from a file: a class is looked up by its name among those that are here.
What has no such form (a class of the user's own, a function among the arguments) must be
given to the restore again.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from paceline.air.errors import RestoreError
from paceline.air.secrets import secret_paths
from paceline.tune.schedulers.trial_scheduler import TrialScheduler
from paceline.tune.search.searcher import Searcher
from paceline.tune.search.space import describe, from_description

P = TypeVar("P", Searcher, TrialScheduler)

_KINDS: dict[type, tuple[str, tuple[str, ...]]] = {
    Searcher: (
        "paceline.tune.search",
        ("BasicVariantGenerator", "ConcurrencyLimiter", "HyperOptSearch", "OptunaSearch", "Repeater"),
    ),
    TrialScheduler: (
        "paceline.tune.schedulers",
        (
            "AsyncHyperBandScheduler",
            "FIFOScheduler",
            "HyperBandScheduler",
            "MedianStoppingRule",
            "PB2",
            "PopulationBasedTraining",
            "PopulationBasedTrainingReplay",
            "ResourceChangingScheduler",
        ),
    ),
}
_PART = "$part"


def described(plugin: Searcher | TrialScheduler) -> dict[str, Any] | None:
    """The plugin as plain data; None if it has no such form."""
    base = Searcher if isinstance(plugin, Searcher) else TrialScheduler
    module, names = _KINDS[base]
    name = type(plugin).__name__
    if name not in names or getattr(importlib.import_module(module), name) is not type(plugin):
        return None
    if isinstance(plugin, Searcher) and plugin.knows_more:
        return None
    positional, keywords = plugin.made_with
    bound = inspect.signature(type(plugin)).bind(*positional, **keywords).arguments
    if secret_paths(bound):
        return None
    arguments = {key: _plain(value) for key, value in bound.items()}
    return None if any(value is None for value in arguments.values()) else {"class": name, "arguments": arguments}


def _plain(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Searcher | TrialScheduler):
        part = described(value)
        return None if part is None else {_PART: part}
    return describe({"value": value})


def rebuilt(base: type[P], description: Mapping[str, Any] | None, argument: str) -> P:
    """The plugin that `described` was given, in the state in which it was made."""
    if description is None:
        raise RestoreError(
            f"The experiment's {argument} is of a class of your own, or was given code, secrets or evaluated points: "
            f"pass it again, as Tuner.restore(..., tune_config=TuneConfig({argument}=...))."
        )
    module, names = _KINDS[base]
    if description["class"] not in names:
        raise RestoreError(f"The experiment names the {argument} {description['class']!r}, which is not here.")
    arguments = {key: _value(base, value, argument) for key, value in description["arguments"].items()}
    made = getattr(importlib.import_module(module), description["class"])(**arguments)
    assert isinstance(made, base)
    return made


def _value(base: type[P], value: Mapping[str, Any], argument: str) -> Any:
    return rebuilt(base, value[_PART], argument) if _PART in value else from_description(value)["value"]
