"""TrainerKind: a trainer whose arguments are searched."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.air.checks import near_miss
from paceline.air.config import CheckpointConfig, RunConfig, ScalingConfig
from paceline.air.constants import TRIAL_INDEX
from paceline.air.errors import ConfigError
from paceline.air.resources import PlacementGroupFactory
from paceline.engine.base import Placement
from paceline.engine.serialization import Shipped
from paceline.run.spec import RunSpec, TrainFunction
from paceline.train.base_trainer import BaseTrainer, TrainerLoop, merged
from paceline.train.data_parallel_trainer import DataParallelTrainer
from paceline.tune.trainable.kinds import TrainableKind

if TYPE_CHECKING:
    from paceline.air.result import Result


class TrainerKind(TrainableKind):
    """Each trial is a trainer like the given one, whose arguments are merged with the trial's configuration."""

    def __init__(self, trainer: BaseTrainer) -> None:
        if trainer._restore_path is not None:
            raise ConfigError(
                f"{type(trainer).__name__}.restore() continues one run, and cannot be the trainable of a search: make "
                "the trainer anew, with resume_from_checkpoint= if it shall start from a checkpoint."
            )
        self.name = type(trainer).__name__
        self.run_config = trainer.run_config
        self.counts_own_bundle = not isinstance(trainer, DataParallelTrainer)
        self.validates = trainer.validation_config is not None
        self._trainer = trainer
        self._shipped: dict[int, Shipped] = {}
        """By the identity of the value, which each of them keeps alive."""
        self._saving: tuple[RunConfig, RunConfig] | None = None

    def run_spec(self, config: dict[str, Any], run_config: RunConfig, checkpoint_every: int | None = None) -> RunSpec:
        run_config = self._saving_every(checkpoint_every, run_config)
        try:
            spec = self._trainer.with_overrides(self._for_trainer(config), run_config).to_run_spec()
        except TypeError as error:  # of the constructor: an argument that it does not take
            everywhere = ", in param_space as in hyperparam_mutations"
            self._check_names(self._for_trainer(config), "A trial's configuration", everywhere)
            raise ConfigError(f"param_space: {error}") from error
        shown = {name: _shown(value) for name, value in config.items() if name not in spec.config}
        return dataclasses.replace(spec, train=self._light(spec.train), config={**spec.config, **shown})

    def _for_trainer(self, config: dict[str, Any]) -> dict[str, Any]:
        """The number of a repetition is no argument of a trainer: the train function gets it, if there is one."""
        if TRIAL_INDEX not in config:
            return config
        arguments = {name: value for name, value in config.items() if name != TRIAL_INDEX}
        if "train_loop_config" in self._arguments()[1]:
            loop_config = arguments.get("train_loop_config") or {}
            arguments["train_loop_config"] = {**loop_config, TRIAL_INDEX: config[TRIAL_INDEX]}
        return arguments

    def _saving_every(self, iterations: int | None, run_config: RunConfig) -> RunConfig:
        if not iterations or run_config.checkpoint_config.checkpoint_frequency or not self._trainer._saves_by_itself:
            return run_config
        if self._saving is None or self._saving[0] is not run_config:
            checkpoints = dataclasses.replace(run_config.checkpoint_config, checkpoint_frequency=iterations)
            self._saving = run_config, dataclasses.replace(run_config, checkpoint_config=checkpoints)
        return self._saving[1]

    def _light(self, train: Any) -> Any:
        """The same without code and data that would be pickled for every trial."""
        if isinstance(train, TrainFunction):
            return dataclasses.replace(train, function=self._once(train.function, "train_loop_per_worker"))
        if isinstance(train, TrainerLoop):
            datasets = train.trainer.datasets
            train.trainer.datasets = {
                name: self._once(dataset, f"datasets[{name!r}]") for name, dataset in datasets.items()
            }
        return train

    def _once(self, value: Any, what: str) -> Any:
        if id(value) not in self._shipped:
            self._shipped[id(value)] = shipped = Shipped(value, what)
            shipped.pack()  # what cannot travel is told by its own name
        return self._shipped[id(value)]

    # -- resources ------------------------------------------------------------------------

    def resources(self, config: dict[str, Any]) -> PlacementGroupFactory:
        return self._scaling(config).as_placement_group_factory()

    def elastic(self, config: dict[str, Any]) -> ScalingConfig | None:
        scaling = self._scaling(config)
        return scaling if scaling.is_elastic else None

    def placement(self, config: dict[str, Any], resources: PlacementGroupFactory) -> Placement:
        scaling = self._scaling(config)
        wishes = {"strategy": scaling.placement_strategy, "accelerator_type": scaling.accelerator_type}
        if room := self._room(config):
            first, *others = room
            return Placement.sketch(1, first, beside=tuple(others), **wishes)
        each, own = scaling.on_nodes()
        workers = max(1, len(resources.bundles) - 1)  # the first bundle is the trainer's
        return Placement.sketch(workers, each, driver_resources=own, **wishes)

    def _room(self, config: dict[str, Any]) -> tuple[Mapping[str, float], ...]:
        """Of a trainer whose one worker starts other processes where there is room."""
        room = self._trainer._room()
        if room and config:
            with contextlib.suppress(Exception):  # What is wrong with a configuration is told when its trial starts.
                return self._trainer.with_overrides(self._for_trainer(config))._room()
        return room

    def _scaling(self, config: dict[str, Any]) -> ScalingConfig:
        scaling = self._trainer.scaling_config
        if "scaling_config" in config:
            scaling = merged(scaling, config["scaling_config"]) or ScalingConfig()
        return scaling

    # -- checks ---------------------------------------------------------------------------

    def check_space(self, space: Mapping[str, Any]) -> None:
        if "run_config" in space:
            raise ConfigError("param_space holds run_config, which is the same for all trials: Tuner(run_config=...).")
        self._check_names(space, "param_space")
        self._check_scaling(space.get("scaling_config"))

    def _check_names(self, config: Mapping[str, Any], what: str, where: str = "") -> None:
        """Refuse names that are no arguments of the trainer."""
        takes_more, known = self._arguments()
        for name in config:
            if name not in known and not takes_more:
                example = f' A key of the train function belongs into {{"train_loop_config": {{...}}}}{where}.'
                hint = example if "train_loop_config" in known else ""
                raise ConfigError(
                    f"{what} has the key {name!r}, but {self.name} takes no argument of that name"
                    f"{near_miss(name, known)}{hint}"
                )

    def _arguments(self) -> tuple[bool, list[str]]:
        """Whether the constructor takes any keyword, and the names that are known."""
        parameters = inspect.signature(type(self._trainer)).parameters.values()
        known = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            return False, known
        more = self._trainer._keywords_beside()
        return more is None, [*known, *(more or ())]

    def _check_scaling(self, searched: Any) -> None:
        fields = [field.name for field in dataclasses.fields(ScalingConfig)]
        if isinstance(searched, Mapping) and "grid_search" not in searched:
            for name in searched:
                if name not in fields:
                    raise ConfigError(f"param_space: scaling_config has no setting {name!r}{near_miss(name, fields)}")
        unknown = searched is None and self._trainer.scaling_config.num_workers is None
        if unknown and isinstance(self._trainer, DataParallelTrainer):
            raise ConfigError("How many workers? Give the trainer scaling_config=ScalingConfig(num_workers=2).")

    def check_mutations(self, mutations: Mapping[str, Any], space: Mapping[str, Any]) -> None:
        self._check_names(mutations, "hyperparam_mutations", ", in hyperparam_mutations as in param_space")

    def check_run_config(self, run_config: RunConfig) -> None:
        if run_config.checkpoint_config != CheckpointConfig():
            self._trainer.with_overrides({}, run_config)

    def check_without_stop(self) -> None:
        self._trainer._check_without_stop()

    def check_continued(self) -> None:
        self._trainer._check_search_continued()

    def made_here(self, result: Result) -> None:
        self._trainer._made_here(result)


def _shown(value: Any) -> Any:
    """A ScalingConfig as the settings that were chosen: results hold plain values."""
    if isinstance(value, ScalingConfig):
        return {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if getattr(value, field.name) != field.default
        }
    return value
