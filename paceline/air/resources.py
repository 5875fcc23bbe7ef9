"""What a run asks for, as a list of resource bundles; and what this process has of cores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.air.absent import advise
from paceline.air.checks import is_number, warn_at_users_line
from paceline.air.errors import ConfigError

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def usable_cores() -> int:
    """How many cores this process may use: those that it is bound to, where the system knows such a thing."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def check_accelerator(accelerator: object, use_gpu: object) -> None:
    """A type of GPU is a wish to a cluster: accepted, with a warning that it has no effect."""
    if not isinstance(accelerator, str) or not accelerator:
        raise ConfigError(f"accelerator_type is {accelerator!r}: give the name of a GPU such as 'A100', or None.")
    advice = "" if use_gpu else " Set use_gpu=True to give each worker a GPU."
    warn_at_users_line(
        f"accelerator_type={accelerator!r} has no effect: workers run on this machine, with the GPUs it has.{advice}"
    )


def checked_resources(resources: Mapping[str, float], what: str) -> dict[str, float]:
    """The resources as floats without zeros, or ConfigError."""
    if not isinstance(resources, Mapping):
        raise ConfigError(f"{what} must be a dict such as {{'CPU': 2}}, not {type(resources).__name__}: {resources!r}")
    plain: dict[str, float] = {}
    for name, amount in resources.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{what} has the key {name!r}: resource names are strings such as 'CPU'.")
        if not is_number(amount) or amount < 0:
            raise ConfigError(f"{what}[{name!r}] is {amount!r}: give a number that is not negative.")
        if amount:
            plain[name] = float(amount)
    return plain


@dataclass
class PlacementGroupFactory:
    """Bundles of resources that are needed at the same time; the first is the trainer's own.

    Bundles are plain dicts of floats without zeros, so two factories that ask for the
    same are equal, and one can be written as JSON.
    """

    bundles: list[dict[str, float]]
    strategy: str = "PACK"

    def __post_init__(self) -> None:
        if not self.bundles:
            raise ConfigError("A PlacementGroupFactory needs at least one bundle, such as [{'CPU': 1}].")
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"strategy is {self.strategy!r}: choose one of {', '.join(STRATEGIES)}.")
        self.bundles = [checked_resources(bundle, f"bundles[{i}]") for i, bundle in enumerate(self.bundles)]

    @property
    def head_cpus(self) -> float:
        """CPUs of the trainer's own bundle."""
        return self.bundles[0].get("CPU", 0.0)

    @property
    def head_bundle_is_empty(self) -> bool:
        return not self.bundles[0]

    @property
    def required_resources(self) -> dict[str, float]:
        """The sum over all bundles."""
        total: dict[str, float] = {}
        for bundle in self.bundles:
            for name, amount in bundle.items():
                total[name] = total.get(name, 0.0) + amount
        return total


ResourceRequest = PlacementGroupFactory

_MANAGED = "ScalingConfig and tune.with_resources() say what is needed; the run acquires and frees it"
_MANAGERS = ("FixedResourceManager", "PlacementGroupResourceManager", "ResourceManager")
_ACQUIRED = ("AcquiredResources", "FixedAcquiredResources", "PlacementGroupAcquiredResources")
advise(
    __name__,
    {
        **dict.fromkeys((*_MANAGERS, *_ACQUIRED), _MANAGED),
        "resource_dict_to_pg_factory": 'write PlacementGroupFactory([{"CPU": 1, "GPU": 1}])',
    },
)
