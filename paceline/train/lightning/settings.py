"""What LightningConfigBuilder has collected, checked as far as that can be done before workers start."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.train.lightning.packages import LIGHTNING, lightning, package_of
from paceline.train.lightning.strategies import check_callbacks, check_checkpoint_io, refuse_saving_on_exception

STRATEGIES = {"ddp": "DDPStrategy", "fsdp": "FSDPStrategy", "deepspeed": "DeepSpeedStrategy"}
"""By name, the class that it stands for."""

_NOT_FOR_TRAINER = {
    "strategy": "the strategy is chosen by .strategy('ddp', ...) of the builder.",
    "devices": "the number of workers is ScalingConfig(num_workers=...).",
    "num_nodes": "the number of workers is ScalingConfig(num_workers=...).",
}
_NOT_FOR_FIT = {"model": "every worker makes its own module, of the class that .module(MyModule, ...) is given."}
_NEUTRAL = {"strategy": ("auto",), "devices": ("auto",), "num_nodes": (1,)}
"""What may be said nevertheless, because it says nothing."""


@dataclass(frozen=True)
class LightningSettings:
    """The parts of a config; its field names are the keys of the dict that the builder makes."""

    module: type[Any] | None = None
    module_args: Mapping[str, Any] = field(default_factory=dict)
    trainer_args: Mapping[str, Any] = field(default_factory=dict)
    fit_args: Mapping[str, Any] = field(default_factory=dict)
    strategy: str = "ddp"
    strategy_args: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def package(self) -> str:
        return (package_of(self.module) if self.module is not None else None) or LIGHTNING

    @property
    def saves(self) -> bool:
        return self.trainer_args.get("enable_checkpointing") is not False


def checked_settings(config: Any) -> LightningSettings:
    """The settings in the dict that the builder makes, parts of which may be missing."""
    known = [each.name for each in fields(LightningSettings)]
    if not isinstance(config, Mapping) or not set(config).issubset(known):
        raise ConfigError(
            f"lightning_config is {type(config).__name__} that LightningConfigBuilder did not make: pass "
            "LightningConfigBuilder().module(MyModule).trainer(max_epochs=3).build()."
        )
    for part, value in config.items():
        if part.endswith("_args") and not isinstance(value, Mapping):
            raise ConfigError(f"lightning_config[{part!r}] is {value!r}: it is a dict of arguments.")
    settings = LightningSettings(**config)
    if settings.strategy not in STRATEGIES:
        raise ConfigError(
            f".strategy({settings.strategy!r}): there are {', '.join(map(repr, STRATEGIES))}. Settings of one are "
            "further arguments, e.g. .strategy('ddp', find_unused_parameters=True)."
        )
    if settings.module is not None:
        _check_module(settings.module)
        _check_arguments(settings)
    _check_misplaced(settings)
    return settings


def _check_module(module: Any) -> None:
    if not isinstance(module, type):
        raise ConfigError(
            f".module() takes the class of the LightningModule, not an object of {type(module).__name__}: every worker "
            f"makes its own. Pass .module({type(module).__name__}, lr=...) with the arguments of its constructor."
        )
    package = package_of(module)
    if package is None or not issubclass(module, lightning(package).LightningModule):
        raise ConfigError(f".module({module.__name__}): that class is not derived from LightningModule.")


def _check_arguments(settings: LightningSettings) -> None:
    """Misspelt arguments are told here, before workers start and models are made."""
    assert settings.module is not None
    library = lightning(settings.package)
    _check_names(f".module({settings.module.__name__}, ...)", settings.module, settings.module_args)
    _check_names(".trainer()", library.Trainer, settings.trainer_args)
    _check_names(".fit_params()", library.Trainer.fit, settings.fit_args)
    _check_names(f".strategy({settings.strategy!r}, ...)", _strategy_parts(settings), settings.strategy_args)
    _check_names(".checkpointing()", library.callbacks.ModelCheckpoint, settings.checkpoint_args)
    check_callbacks(as_list(settings.trainer_args.get("callbacks")), settings.package)
    environment = lightning(f"{settings.package}.plugins.environments").ClusterEnvironment
    for plugin in as_list(settings.trainer_args.get("plugins")):
        check_checkpoint_io(plugin, settings.package)
        if isinstance(plugin, environment):
            raise ConfigError(
                f".trainer(plugins=[{type(plugin).__name__}()]): the workers are connected by LightningTrainer. Leave "
                "the environment out."
            )


def _strategy_parts(settings: LightningSettings) -> tuple[Callable[..., Any], ...]:
    """What takes the arguments of a strategy: Lightning's, and what it hands the others on to."""
    strategy = getattr(lightning(settings.package).strategies, STRATEGIES[settings.strategy])
    if settings.strategy == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return strategy, DistributedDataParallel
    if settings.strategy == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return strategy, FullyShardedDataParallel
    return (strategy,)


def _check_names(
    where: str, takers: Callable[..., Any] | tuple[Callable[..., Any], ...], given: Mapping[str, Any]
) -> None:
    """`takers` are a function, or one and those that its further arguments go on to."""
    functions = takers if isinstance(takers, tuple) else (takers,)
    parameters = [each for function in functions for each in inspect.signature(function).parameters.values()]
    last = inspect.signature(functions[-1]).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in last):
        return
    known = [each.name for each in parameters if each.name != "self" and each.kind is not each.VAR_KEYWORD]
    for name in given:
        if name not in known:
            raise ConfigError(f"{where} got {name!r}, which is no argument there{near_miss(name, known)}")


def _check_misplaced(settings: LightningSettings) -> None:
    for name, advice in _NOT_FOR_TRAINER.items():
        if name in settings.trainer_args and settings.trainer_args[name] not in _NEUTRAL[name]:
            raise ConfigError(f".trainer({name}={settings.trainer_args[name]!r}): {advice}")
    for name, advice in _NOT_FOR_FIT.items():
        if name in settings.fit_args:
            raise ConfigError(f".fit_params({name}=...): {advice}")
    if settings.checkpoint_args and not settings.saves:
        raise ConfigError(".checkpointing() and .trainer(enable_checkpointing=False): do you want checkpoints or not?")
    if settings.checkpoint_args.get("save_on_exception"):
        refuse_saving_on_exception(".checkpointing(save_on_exception=True)")


def as_list(given: Any) -> list[Any]:
    """Lightning takes one callback or plugin, or several."""
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]


class LightningConfigBuilder:
    """Collects what a Lightning script would call, for every worker to call it.

        lightning_config = (
            LightningConfigBuilder()
            .module(MyModule, lr=1e-3)
            .trainer(max_epochs=10)
            .fit_params(datamodule=MyData())
            .checkpointing(monitor="val_loss", save_top_k=2)
            .build()
        )

    Each method may be called several times; later values win. What a search shall try goes the same way, into
    `Tuner(trainer, param_space={"lightning_config": LightningConfigBuilder().module(lr=tune.uniform(...)).build()})`.
    """

    def __init__(self) -> None:
        self._config: dict[str, Any] = {}

    def module(self, cls: type[Any] | None = None, **kwargs: Any) -> Self:
        """The class of the LightningModule, and the arguments that workers make it with."""
        if cls is not None:
            self._config["module"] = cls
        return self._with("module_args", kwargs)

    def trainer(self, **kwargs: Any) -> Self:
        """Arguments of `lightning.pytorch.Trainer`."""
        return self._with("trainer_args", kwargs)

    def fit_params(self, **kwargs: Any) -> Self:
        """Arguments of `Trainer.fit`: `datamodule`, or `train_dataloaders` and `val_dataloaders`; `ckpt_path`."""
        return self._with("fit_args", kwargs)

    def strategy(self, name: str = "ddp", **kwargs: Any) -> Self:
        """How the workers train together: "ddp", "fsdp" or "deepspeed", with the arguments of Lightning's strategy."""
        earlier = self._config.setdefault("strategy", name)
        if earlier != name:
            raise ConfigError(f"The strategy is {earlier!r} already, and shall be {name!r} too: choose one.")
        return self._with("strategy_args", kwargs)

    def ddp_strategy(self, **kwargs: Any) -> Self:
        """Arguments of Lightning's DDPStrategy, e.g. find_unused_parameters=True."""
        return self.strategy("ddp", **kwargs)

    def checkpointing(self, **kwargs: Any) -> Self:
        """Arguments of Lightning's ModelCheckpoint, which decides when the run gets a checkpoint."""
        return self._with("checkpoint_args", kwargs)

    def build(self) -> dict[str, Any]:
        """What `LightningTrainer(lightning_config=...)` takes."""
        checked_settings(self._config)
        return {name: dict(value) if isinstance(value, dict) else value for name, value in self._config.items()}

    def _with(self, part: str, values: dict[str, Any]) -> Self:
        if values:
            self._config[part] = {**self._config.get(part, {}), **values}
        return self
