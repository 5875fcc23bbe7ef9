"""DataParallelTrainer: one function on every worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar, Unpack

from paceline.air.checks import check_kind, near_miss, warn_at_users_line
from paceline.air.data_config import DataConfig, DatasetConfig
from paceline.air.errors import ConfigError, RestoreError
from paceline.air.plugins import checked_made, plugin, plugin_names
from paceline.air.secrets import masked, secret_paths
from paceline.air.settings import plain_config, stored
from paceline.engine.choose import choose_engine
from paceline.run.attempt import modules_to_preload
from paceline.run.backend import Backend, BackendConfig
from paceline.run.spec import RunSpec, TrainFunction
from paceline.train.arguments import (
    TrainerArguments,
    check_uneven,
    complete_configs,
    continued_preprocessor,
    make_ingest,
    positional_names,
    restored_configs,
)
from paceline.train.base_trainer import BaseTrainer


class DataParallelTrainer(BaseTrainer):
    """Runs `train_loop_per_worker` on `scaling_config.num_workers` workers.

    The function takes no argument, or one: `train_loop_config`. What it returns is dropped.
    """

    _dataset_config: ClassVar[Mapping[str, DatasetConfig] | None] = None
    """How datasets reach the workers of a subclass, unless the constructor's dataset_config says otherwise."""
    _function_argument: ClassVar[str] = "train_loop_per_worker"
    _config_argument: ClassVar[str] = "train_loop_config"
    """What a class calls its function and the function's configuration, for restore()."""
    _not_elastic: ClassVar[str] = ""
    _function_class: ClassVar[type[TrainFunction]] = TrainFunction
    """What calls the function in a worker."""

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        backend_config: BackendConfig | str | None = None,
        dataset_config: Any = None,
        **common: Unpack[TrainerArguments],
    ) -> None:
        super().__init__(**common)
        if train_loop_config is not None and not isinstance(train_loop_config, Mapping):
            raise ConfigError(f"train_loop_config must be a dict, not {type(train_loop_config).__name__}.")
        if type(self).training_loop is not BaseTrainer.training_loop:
            raise ConfigError(
                f"{type(self).__name__} overrides training_loop(), which a DataParallelTrainer does not call: its "
                "workers run train_loop_per_worker. Derive from BaseTrainer instead."
            )
        self._function = train_loop_per_worker
        if not hasattr(type(self), "train_loop_per_worker"):  # a method of a subclass stays what it is
            self.train_loop_per_worker = train_loop_per_worker
        self.train_loop_config = train_loop_config
        self.backend_config = _as_backend_config(backend_config)
        self.dataset_config = dataset_config
        self.get_dataset_config()  # what is wrong with it is told here
        self._takes_config = _takes_config(train_loop_per_worker)
        if train_loop_config and not self._takes_config:
            warn_at_users_line(
                f"train_loop_config is given, but {getattr(train_loop_per_worker, '__name__', 'the train function')}() "
                "takes no argument and will not see it. Write it as a function of one argument, the config."
            )
        self._warm_up()

    def _warm_up(self) -> None:
        """Let the workers' imports begin while the user's own program goes on."""
        _warn_of_missing_modules(self.backend_config.backend_cls)
        if not self.backend_config.backend_cls.fresh:
            modules = modules_to_preload(self.backend_config, with_data=bool(self.datasets))
            workers = self.scaling_config.max_workers
            choose_engine(self.run_config.engine).warm(modules, workers if isinstance(workers, int) else None)

    def to_run_spec(self) -> RunSpec:
        if self.scaling_config.num_workers is None:
            raise ConfigError("How many workers? Pass scaling_config=ScalingConfig(num_workers=2), for example.")
        self.backend_config.check(self.scaling_config)
        config = {} if self.train_loop_config is None else {"train_loop_config": dict(self.train_loop_config)}
        chosen = vars(self).get("train_loop_per_worker", self._function)
        function = self._function_class(chosen, self.train_loop_config, self._takes_config)
        resumed = self.resume_from_checkpoint
        ingest = make_ingest(self.datasets, self._whole_dataset_config(), self.preprocessor, resumed)
        if ingest is not None:
            check_uneven(ingest.configs, self.backend_config.backend_cls.joins_uneven, type(self).__name__)
        return self._run_spec(function, config, backend_config=self.backend_config, ingest=ingest)

    def get_dataset_config(self) -> dict[str, DatasetConfig]:
        """How each dataset reaches the workers."""
        return complete_configs(self._whole_dataset_config(), self.datasets)

    def _whole_dataset_config(self) -> DataConfig | Mapping[str, DatasetConfig] | None:
        """What the class says, with what this trainer was given laid over it. A DataConfig takes its place."""
        given: DataConfig | Mapping[str, DatasetConfig] | None = self.dataset_config
        if self._dataset_config is None or isinstance(given, DataConfig):
            return given
        return DatasetConfig.merge(self._dataset_config, given)

    @classmethod
    def _names_for_restore(cls) -> list[str]:
        return [cls._function_argument, cls._config_argument]

    def _again(self) -> list[str]:
        config = getattr(self, self._config_argument, None)
        is_stored = config is None or (plain_config(dict(config)) is not None and not secret_paths(config))
        backend, name = self._given_backend()
        objects = [] if is_stored else [self._config_argument]
        if backend is not None and name is None:
            objects.append(backend)
        return [self._function_argument, *objects, *super()._again()]

    def _given_backend(self) -> tuple[str | None, str | None]:
        """The argument by which it was given its backend, and the registered name if that is what was given."""
        values, keywords = self._given
        given = {**dict(zip(positional_names(type(self)), values, strict=False)), **keywords}
        for argument, value in given.items():
            if isinstance(value, BackendConfig):
                return argument, None
        name = given.get("backend_config")
        return ("backend_config", name) if isinstance(name, str) else (None, None)

    def _described_backend(self) -> dict[str, Any]:
        config = self.backend_config
        argument, name = self._given_backend()
        kind = f"{type(config).__module__}.{type(config).__qualname__}"
        return {"class": kind, "argument": argument, "name": name, "settings": masked(stored(config))}

    def _code(self) -> Any:
        return getattr(self, self._function_argument, None)

    @classmethod
    def _restored_arguments(cls, settings: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
        given = super()._restored_arguments(settings, arguments)
        cls._restored_function(settings, given)
        backend = settings.get("backend") or {}
        if backend.get("name") and not any(isinstance(value, BackendConfig) for value in given.values()):
            given.setdefault(backend["argument"], backend["name"])
        if settings.get("dataset_config") and "dataset_config" not in given:
            given["dataset_config"] = restored_configs(settings["dataset_config"])
        return given

    @classmethod
    def _restored_function(cls, settings: Mapping[str, Any], given: dict[str, Any]) -> None:
        """What to run must be among the given arguments; its config is taken over."""
        function, config = cls._function_argument, cls._config_argument
        if function not in given:
            raise RestoreError(
                f"{cls.__name__}.restore() needs the function again, because code is never read from disk: "
                f"restore(path, {function}=...)."
            )
        if config in given:
            return
        stored = settings["config"]
        if stored is None:
            raise RestoreError(
                f"The run's {config} holds values that cannot be stored as plain data: pass {config}= to restore() "
                "again."
            )
        if config in stored:
            given[config] = stored[config]

    def _continue(self, path: str, settings: Mapping[str, Any]) -> None:
        super()._continue(path, settings)
        filesystem = self.run_config.storage_filesystem
        self.preprocessor = continued_preprocessor(path, filesystem, self.preprocessor)
        if settings.get("had_preprocessor") and self.preprocessor is None:
            raise RestoreError("The run had a preprocessor: pass preprocessor= to restore() again.")


def _as_backend_config(given: BackendConfig | str | None) -> BackendConfig:
    """A name is one that an installed package has registered as an entry point of `paceline.backends`."""
    if isinstance(given, str):
        found = plugin("backends", given)
        if found is None:
            near = near_miss(given, plugin_names("backends"))
            raise ConfigError(f"backend_config={given!r}: pass a BackendConfig, or the name of a backend package{near}")
        return checked_made(found(), BackendConfig, "backends", given)
    return check_kind(given, BackendConfig, "backend_config") or BackendConfig()


def _warn_of_missing_modules(backend: type[Backend]) -> None:
    """Workers start without a module that is not there. Of paceline's own backends, extras may be missing."""
    if backend.__module__.startswith("paceline."):
        return
    for name in backend.preload:
        if find_spec(name.partition(".")[0]) is None:  # of a submodule it would import the parent
            warn_at_users_line(f"{backend.__name__}.preload names {name}, which cannot be imported here.")


def _takes_config(function: object) -> bool:
    """Whether to pass the config; refuses a function that no worker could call."""
    if not callable(function):
        raise ConfigError(
            f"train_loop_per_worker must be a function, not {type(function).__name__}. Pass the function itself, "
            "without calling it: train_func, not train_func()."
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    required = [each for each in positional if each.default is each.empty]
    keyword_only = [each for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    if len(required) > 1 or keyword_only:
        raise ConfigError(
            f"train_loop_per_worker must take no argument or one (the config), but "
            f"{getattr(function, '__name__', function)!r} needs {len(required) + len(keyword_only)}: "
            f"{inspect.signature(function)}."
        )
    return bool(positional) or any(each.kind is each.VAR_POSITIONAL for each in parameters)
