"""The kinds of trainables: each compiles a configuration to the RunSpec of a trial."""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air.checks import warn_at_users_line
from paceline.air.config import RunConfig, ScalingConfig
from paceline.air.errors import ConfigError
from paceline.air.resources import PlacementGroupFactory
from paceline.engine.base import Placement
from paceline.engine.choose import choose_engine
from paceline.engine.serialization import Shipped
from paceline.run.attempt import modules_to_preload
from paceline.run.backend import Backend, BackendConfig
from paceline.run.spec import RunSpec
from paceline.train.base_trainer import BaseTrainer
from paceline.train.imports import referred_modules
from paceline.tune.registry import get_trainable
from paceline.tune.trainable.parameters import BoundFunction, as_resources, resources_for
from paceline.tune.trainable.session import FunctionLoop, call_form, function_name
from paceline.tune.trainable.trainable import ClassLoop, FunctionTrainable, Trainable

if TYPE_CHECKING:
    from paceline.air.result import Result

_ONE_CPU = PlacementGroupFactory([{"CPU": 1}])


class TrainableKind(ABC):
    """What a search needs to know of the thing that it tries out."""

    name: str
    """For directories."""
    validates: bool = False
    """Its rows may get metrics of validations, after they were reported."""
    counts_own_bundle = True
    """Whether the first bundle of the resources is taken while a trial runs; the process that merely drives the
    workers of a trainer costs nothing on one machine."""
    stops_when_done = False
    """Whether a row with {"done": True} ends a trial that would otherwise continue."""
    run_config: RunConfig | None = None
    """The trainable's own; a Tuner without one takes it over."""

    @abstractmethod
    def run_spec(self, config: dict[str, Any], run_config: RunConfig, checkpoint_every: int | None = None) -> RunSpec:
        """The run of a trial. `checkpoint_every` is how many iterations apart it shall save where the user did not say
        so and the trainable can. Identity, directory and seed are set by the caller."""

    @abstractmethod
    def resources(self, config: dict[str, Any]) -> PlacementGroupFactory:
        """What the trial with this configuration needs."""

    def elastic(self, config: dict[str, Any]) -> ScalingConfig | None:
        """How the workers of an elastic trial are chosen; None if their number is fixed."""
        return None

    def placement(self, config: dict[str, Any], resources: PlacementGroupFactory) -> Placement:
        """The same as an engine is asked for it. By default one process, with all that is beside it."""
        return Placement.sketch(1, resources.required_resources)

    def check_can_save(self, why: str) -> None:  # noqa: B027  (optional)
        """Refuse a trainable of which it is known that it never saves a checkpoint, where `why` needs some."""

    def check_space(self, space: Mapping[str, Any]) -> None:  # noqa: B027  (optional)
        """Refuse a param_space that no trial could be made of."""

    def check_mutations(self, mutations: Mapping[str, Any], space: Mapping[str, Any]) -> None:
        """Look whether a scheduler changes parameters that there are, beside those of `space`."""
        for name in mutations:
            near = difflib.get_close_matches(name, [key for key in space if key not in mutations], n=1)
            if name not in space and near:
                warn_at_users_line(
                    f"The scheduler changes {name!r}, which param_space does not have: it becomes one more parameter, "
                    f"and {near[0]!r} stays as it is. Did you mean {near[0]!r}?"
                )

    def check_run_config(self, run_config: RunConfig) -> None:  # noqa: B027  (optional)
        """Refuse settings that have no meaning for this kind."""

    def warm(self, run_config: RunConfig) -> None:  # noqa: B027  (optional)
        """Let the workers' imports begin while the user's own program continues."""

    def check_without_stop(self) -> None:  # noqa: B027  (optional)
        """Asked if neither a stop criterion nor a scheduler nor a time budget ends the trials."""

    def check_continued(self) -> None:  # noqa: B027  (optional)
        """Asked before trials continue from files that this process may not have written."""

    def made_here(self, result: Result) -> None:  # noqa: B027  (optional)
        """The result is of a trial that ran in this process: its files need no trust."""


def kind_of(trainable: Any) -> TrainableKind:
    """The kind of a function, a Trainable class, a trainer, or the name of a registered one."""
    if isinstance(trainable, str):
        trainable = get_trainable(trainable)
    if isinstance(trainable, BaseTrainer):
        from paceline.tune.trainable.trainer_kind import TrainerKind

        return TrainerKind(trainable)
    if isinstance(trainable, type):
        if issubclass(trainable, FunctionTrainable):
            return FunctionKind(trainable.function, trainable.__name__)
        if issubclass(trainable, Trainable):
            return ClassKind(trainable)
        made = "make one and pass it" if issubclass(trainable, BaseTrainer) else "derive it from tune.Trainable"
        raise ConfigError(f"The trainable is the class {trainable.__name__}: {made}.")
    if isinstance(trainable, Trainable):
        raise ConfigError(f"The trainable is an object of {type(trainable).__name__}: pass the class itself.")
    if callable(trainable):
        return FunctionKind(trainable)
    raise ConfigError(
        f"A trainable is a function of a config, a Trainable class, a trainer or a registered name, not {trainable!r}."
    )


class _ProcessKind(TrainableKind):
    """One process per trial, with the resources that the trainable asks for."""

    def __init__(self, trainable: Any, name: str, libraries: tuple[str, ...]) -> None:
        self.name = directory_name(name)
        self._shipped = Shipped(trainable, f"the trainable {name}")
        self._backend = TrainableBackendConfig(libraries)
        self._scalings: dict[tuple[tuple[str, float], ...], ScalingConfig] = {}

    def run_spec(self, config: dict[str, Any], run_config: RunConfig, checkpoint_every: int | None = None) -> RunSpec:
        self._shipped.pack()
        return RunSpec(
            trainer_name=self.name,
            train=self._loop(config, run_config, checkpoint_every),
            config=config,
            scaling=self._scaling(self.resources(config)),
            run_config=run_config,
            backend_config=self._backend,
            numbers_by_iteration=isinstance(self, ClassKind),
        )

    @abstractmethod
    def _loop(self, config: dict[str, Any], run_config: RunConfig, every: int | None) -> Callable[[], None]: ...

    def _scaling(self, resources: PlacementGroupFactory) -> ScalingConfig:
        """One worker that has the first bundle; further bundles are for processes that it starts itself."""
        bundle = resources.bundles[0]
        key = tuple(bundle.items())
        if key not in self._scalings:
            self._scalings[key] = ScalingConfig(
                trainer_resources=bundle, resources_per_worker=bundle, use_gpu=bool(bundle.get("GPU"))
            )
        return self._scalings[key]

    def warm(self, run_config: RunConfig) -> None:
        choose_engine(run_config.engine).warm(modules_to_preload(self._backend))


class FunctionKind(_ProcessKind):
    """A function of a config, maybe with parameters and resources of its own."""

    stops_when_done = True

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        bound = function if isinstance(function, BoundFunction) else BoundFunction(function)
        name = name or function_name(bound.function)
        self._form = call_form(bound.function, bound.parameters, name)
        self._resources = bound.resources
        libraries = libraries_of(bound.function, dict(bound.parameters))
        shipped = BoundFunction(bound.function, bound.parameters) if bound.parameters else bound.function
        super().__init__(shipped, name, libraries)

    def _loop(self, config: dict[str, Any], run_config: RunConfig, every: int | None) -> Callable[[], None]:
        return FunctionLoop(self._shipped, config, self._form)  # type: ignore[arg-type]  # unpickled it is a function

    def resources(self, config: dict[str, Any]) -> PlacementGroupFactory:
        return _ONE_CPU if self._resources is None else resources_for(self._resources, config)

    def check_run_config(self, run_config: RunConfig) -> None:
        for name in ("checkpoint_frequency", "checkpoint_at_end"):
            if value := getattr(run_config.checkpoint_config, name):
                raise ConfigError(
                    f"CheckpointConfig({name}={value!r}) has no meaning for the function {self.name}: it decides when "
                    "to checkpoint, by report(..., checkpoint=...)."
                )


class ClassKind(_ProcessKind):
    """A class derived from Trainable."""

    def __init__(self, trainable: type[Trainable]) -> None:
        if trainable.step is Trainable.step:
            raise ConfigError(f"{trainable.__name__} must define step(self), which does one iteration.")
        self._class = trainable
        super().__init__(trainable, trainable.__name__, libraries_of(trainable))

    def _loop(self, config: dict[str, Any], run_config: RunConfig, every: int | None) -> Callable[[], None]:
        checkpoints = run_config.checkpoint_config
        frequency = checkpoints.checkpoint_frequency or every or 0
        return ClassLoop(self._shipped, config, frequency, bool(checkpoints.checkpoint_at_end))  # type: ignore[arg-type]

    def resources(self, config: dict[str, Any]) -> PlacementGroupFactory:
        asked = self._class.default_resource_request(config)
        return _ONE_CPU if asked is None else resources_for(as_resources(asked), config)

    def check_can_save(self, why: str) -> None:
        if self._class.save_checkpoint is Trainable.save_checkpoint:
            raise ConfigError(f"{why} hands checkpoints from trial to trial, but {self.name} has no save_checkpoint().")

    def check_run_config(self, run_config: RunConfig) -> None:
        checkpoints = run_config.checkpoint_config
        asked = checkpoints.checkpoint_frequency or checkpoints.checkpoint_at_end
        if asked and self._class.save_checkpoint is Trainable.save_checkpoint:
            raise ConfigError(
                f"CheckpointConfig(checkpoint_frequency, checkpoint_at_end): {self.name} cannot be saved, because it "
                "defines no save_checkpoint()."
            )


def directory_name(name: str) -> str:
    """The part of a name that can be one of a directory."""
    return re.sub(r"[^A-Za-z0-9._]+", "_", name).strip("._")[:60] or "trainable"


_OURS = ("paceline.tune.trainable.session", "paceline.tune.trainable.trainable")
_SLOW_TO_IMPORT = frozenset(["numpy", "pandas", "scipy", "sklearn"])
_ONLY_ONE_OF = ("torch", "xgboost", "lightgbm")
"""Each brings threads of its own kind: two of them are not loaded into one process that forks."""
_IMPORTED_LATER = ("torch._dynamo", "torch.profiler._cupti_monitor", "torch.utils.serialization.config")
"""Pulled in by the first optimizer and the first torch.save: hundreds of modules, seconds in each trial."""


class TrainableBackend(Backend):
    """Has the modules that every such trial needs loaded before it is forked."""

    preload: ClassVar[tuple[str, ...]] = _OURS
    thread_setters: ClassVar[tuple[str, ...]] = ("torch:set_num_threads",)


@dataclass
class TrainableBackendConfig(BackendConfig):
    """What is to be loaded besides."""

    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        later = _IMPORTED_LATER if any(name.partition(".")[0] == "torch" for name in self.modules) else ()
        names = {"preload": (*_OURS, *self.modules, *later)}
        self._backend: type[Backend] = type("TrainableBackend", (TrainableBackend,), names)

    @property
    def backend_cls(self) -> type[Backend]:
        return self._backend


def libraries_of(*values: Any) -> tuple[str, ...]:
    """Well-known libraries that functions, classes and other values refer to. Each trial would import them anew, which
    can take longer than the trial itself; code of the user's own is not imported before it is used."""
    named = referred_modules(*values)
    roots = {name.partition(".")[0] for name in named}
    single = next((name for name in _ONLY_ONE_OF if name in roots), None)
    wanted = _SLOW_TO_IMPORT | {"paceline"} | ({single} if single else set())
    return tuple(sorted(name for name in named if name.partition(".")[0] in wanted))
