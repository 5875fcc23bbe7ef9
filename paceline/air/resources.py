"""What a run asks for: ScalingConfig, or a list of resource bundles; and what this process has of cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from paceline.air.absent import advise
from paceline.air.checks import (
    ShortRepr,
    check_bool,
    check_choice,
    check_seconds,
    is_number,
    is_search_space,
    names_what_was_meant,
    whole_number,
)
from paceline.air.errors import ConfigError

MOST_WORKERS = 100_000
"""Beyond it a typo is likelier than a wish; what can really be started, the engine says."""
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def usable_cores() -> int:
    """How many cores this process may use: those that it is bound to, where the system knows such a thing."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def check_accelerator(accelerator: object) -> None:
    if not isinstance(accelerator, str) or not accelerator:
        raise ConfigError(f"accelerator_type is {accelerator!r}: give the name of a GPU such as 'A100', or None.")


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


@names_what_was_meant()
@dataclass(eq=False, repr=False)
class ScalingConfig(ShortRepr):
    """How many workers, and what each of them gets.

    Every field may hold a search space instead of a value; it is checked once sampled.
    """

    trainer_resources: dict[str, float] | None = None
    """What the trainer itself needs. On a cluster that much is reserved beside the workers, if it is given; on one
    machine it costs nothing. None counts as one CPU where bundles are shown."""
    num_workers: int | tuple[int, int] | None = None
    """How many workers; needed by the time fit() is called. `(least, most)` makes the run elastic: each attempt has as
    many workers as there is room for."""
    use_gpu: bool = False
    """Give each worker a GPU."""
    resources_per_worker: dict[str, float] | None = None
    """What a worker needs; None means one CPU, or one GPU with use_gpu."""
    placement_strategy: str = "PACK"
    """How workers are spread over the nodes of a cluster: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD."""
    _max_cpu_fraction_per_node: float | None = None
    """Has no effect, with a warning: workers may take all CPUs of a node."""
    accelerator_type: str | None = None
    """The type of GPU that the nodes of a cluster must have. On one machine it has no effect, with a warning."""
    elastic_resize_monitor_interval_s: float = 60.0
    """How often an elastic run looks for room for more workers."""
    policy: Callable[[Any], int | None] | None = None
    """Chooses the number of workers of an elastic run. It takes a ScalingSituation and returns a number, or None to
    wait; the default is to use all the room there is."""

    def __post_init__(self) -> None:
        if self.num_workers is not None and not is_search_space(self.num_workers):
            self.num_workers = _checked_workers(self.num_workers)
        self._check_elastic()
        if not is_search_space(self.use_gpu):
            check_bool(self.use_gpu, "use_gpu", advice="Ask for several GPUs with resources_per_worker={'GPU': n}.")
        for name in ("trainer_resources", "resources_per_worker"):
            _check_unless_sampled(getattr(self, name), name)
        if not is_search_space(self.placement_strategy):
            check_choice(self.placement_strategy, "placement_strategy", STRATEGIES)
        share = self._max_cpu_fraction_per_node
        if share is not None and not is_search_space(share) and not (is_number(share) and 0 < share <= 1):
            raise ConfigError(f"_max_cpu_fraction_per_node is {share!r}: give a number above 0 and at most 1.")
        if self.accelerator_type is not None and not is_search_space(self.accelerator_type):
            check_accelerator(self.accelerator_type)
        self._check_gpus()

    def _check_elastic(self) -> None:
        if not is_search_space(self.elastic_resize_monitor_interval_s):
            check_seconds(self.elastic_resize_monitor_interval_s, "elastic_resize_monitor_interval_s")
        if self.policy is None or is_search_space(self.policy):
            return
        if not callable(self.policy):
            raise ConfigError(f"policy is {self.policy!r}: give a function that takes a ScalingSituation.")
        if isinstance(self.num_workers, int):
            raise ConfigError(
                f"policy chooses the number of workers, but num_workers={self.num_workers} leaves no choice. Write "
                f"num_workers=(1, {self.num_workers}), for example, or leave policy out."
            )

    @property
    def is_elastic(self) -> bool:
        """The number of workers may change between attempts."""
        return isinstance(self.num_workers, tuple)

    @property
    def min_workers(self) -> int | None:
        """How many workers there must be at least."""
        return self.num_workers[0] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def max_workers(self) -> int | None:
        """How many workers there can be at most."""
        return self.num_workers[1] if isinstance(self.num_workers, tuple) else self.num_workers

    def with_workers(self, count: int) -> ScalingConfig:
        """The same with a fixed number of workers."""
        return replace(self, num_workers=count, policy=None) if self.is_elastic else self

    def _check_gpus(self) -> None:
        resources = self.resources_per_worker
        if resources is None or is_search_space(resources) or is_search_space(self.use_gpu):
            return
        asked = resources.get("GPU")
        if asked is None or is_search_space(asked):
            return
        if asked and not self.use_gpu:
            raise ConfigError(
                f"resources_per_worker asks for {asked} GPU but use_gpu is False. "
                "Set use_gpu=True, or take 'GPU' out of resources_per_worker."
            )
        if not asked and self.use_gpu:
            raise ConfigError(
                "use_gpu is True but resources_per_worker gives each worker 0 GPU. "
                "Set use_gpu=False, or take 'GPU' out of resources_per_worker to get one GPU per worker."
            )

    def __eq__(self, other: object) -> bool:
        """Two configs are equal if they ask for the same bundles; elastic ones, if they have the same settings."""
        if not isinstance(other, ScalingConfig):
            return NotImplemented
        if self._is_open() or other._is_open() or self.is_elastic or other.is_elastic:
            return all(getattr(self, item.name) == getattr(other, item.name) for item in fields(self))
        return self.as_placement_group_factory() == other.as_placement_group_factory()

    __hash__ = None  # type: ignore[assignment]  # how Python marks what has no hash

    def _is_open(self) -> bool:
        """True while some field holds a search space."""
        values = [getattr(self, item.name) for item in fields(self)]
        for value in list(values):
            if isinstance(value, Mapping):
                values.extend(value.values())
        return any(is_search_space(value) for value in values)

    @property
    def _worker_resources(self) -> dict[str, float]:
        if self.resources_per_worker is None:
            return {"GPU": 1.0} if self.use_gpu else {"CPU": 1.0}
        resources = checked_resources(self.resources_per_worker, "resources_per_worker")
        if self.use_gpu:
            resources.setdefault("GPU", 1.0)
        return resources

    @property
    def num_cpus_per_worker(self) -> float:
        return self._worker_resources.get("CPU", 0.0)

    @property
    def num_gpus_per_worker(self) -> float:
        return self._worker_resources.get("GPU", 0.0)

    @property
    def additional_resources_per_worker(self) -> dict[str, float]:
        """What a worker needs besides CPUs and GPUs."""
        return {name: amount for name, amount in self._worker_resources.items() if name not in ("CPU", "GPU")}

    def on_nodes(self) -> tuple[dict[str, float], dict[str, float]]:
        """What a cluster has to keep for each worker, and for the trainer beside them.

        A trainer without workers runs in a process of its own, which is the worker then.
        """
        own = checked_resources(self.trainer_resources or {}, "trainer_resources")
        if self.num_workers is not None:
            return self._worker_resources, own
        return (self._worker_resources if self.resources_per_worker is not None or not own else own), {}

    @property
    def total_resources(self) -> dict[str, float]:
        """The sum over trainer and workers."""
        return self.as_placement_group_factory().required_resources

    def accelerator_warning(self) -> str:
        """What to say on one machine, where a type of GPU cannot be chosen; empty without one."""
        if self.accelerator_type is None:
            return ""
        advice = "" if self.use_gpu else " Set use_gpu=True to give each worker a GPU."
        return (
            f"accelerator_type={self.accelerator_type!r} has no effect: workers run on this machine, with the GPUs it "
            f"has.{advice}"
        )

    def as_placement_group_factory(self) -> PlacementGroupFactory:
        """The same as bundles: the trainer's, then one per worker. Of an elastic run, those that it has at most."""
        if self._is_open():
            raise ConfigError("This ScalingConfig holds a search space: resources are known once it has been sampled.")
        trainer = {"CPU": 1.0} if self.trainer_resources is None else self.trainer_resources
        workers = [self._worker_resources for _ in range(self.max_workers or 0)]
        return PlacementGroupFactory([trainer, *workers], strategy=self.placement_strategy)

    @classmethod
    def from_placement_group_factory(cls, pgf: PlacementGroupFactory) -> ScalingConfig:
        """The config that asks for these bundles; all workers must want the same."""
        trainer, *workers = pgf.bundles
        if any(bundle != workers[0] for bundle in workers):
            raise ConfigError(f"Workers of one run get equal resources, but the bundles differ: {workers}.")
        return cls(
            trainer_resources=dict(trainer),
            num_workers=len(workers) or None,
            use_gpu=bool(workers and workers[0].get("GPU")),
            resources_per_worker=dict(workers[0]) if workers else None,
            placement_strategy=pgf.strategy,
        )


def _checked_workers(count: Any) -> int | tuple[int, int]:
    if isinstance(count, tuple | list):
        if len(count) != 2:
            raise ConfigError(f"num_workers is {count!r}: give a number, or the pair (least, most) of an elastic run.")
        least = whole_number(count[0], "num_workers[0]", least=1)
        most = whole_number(count[1], "num_workers[1]", least=1)
        if least > most:
            raise ConfigError(f"num_workers is ({least}, {most}): give the smaller number first, ({most}, {least}).")
        checked: int | tuple[int, int] = (least, most)
    else:
        advice = "Or the pair (least, most) of an elastic run."
        checked = most = whole_number(count, "num_workers", least=1, advice=advice)
    if most > MOST_WORKERS:
        raise ConfigError(f"num_workers is {checked}; the maximum is {MOST_WORKERS}.")
    return checked


def _check_unless_sampled(resources: Any, what: str) -> None:
    """Check a resource dict, leaving out what a search space will fill in."""
    if resources is None or is_search_space(resources):
        return
    if isinstance(resources, Mapping):
        resources = {name: amount for name, amount in resources.items() if not is_search_space(amount)}
    checked_resources(resources, what)


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
