"""BaseTrainer: what every trainer shares. A trainer checks its arguments and compiles them to a RunSpec."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from paceline.air import session as session_slot
from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import check_kind, names_what_was_meant
from paceline.air.config import (
    RunConfig,
    ScalingConfig,
)
from paceline.air.errors import (
    ConfigError,
    RestoreError,
    TrainingFailedError,
)
from paceline.air.secrets import missing_secrets
from paceline.air.settings import restored, run_config_again
from paceline.air.validation import ValidationConfig
from paceline.engine.choose import choose_engine
from paceline.run.spec import RunSpec, TrialIdentity
from paceline.train.arguments import (
    SETTINGS_ELSEWHERE,
    as_checkpoint,
    check_datasets,
    check_is_there,
    check_validation,
    missing_again,
    positional_names,
    preprocessed,
    validation_spec,
    with_checked_keywords,
)
from paceline.train.restoring import (
    check_backend,
    find_runs,
    reject_changed_code,
    restore_arguments,
    resumed,
    run_to_restore,
)

if TYPE_CHECKING:
    from paceline.air.result import Result

__all__ = ["BaseTrainer", "TrainingFailedError"]


class BaseTrainer:
    """Runs `setup`, `preprocess_datasets` and `training_loop` in one worker process.

    Derive from it to run something that needs no workers of its own; derive from
    DataParallelTrainer to run a function on many.
    """

    _scaling_config_allowed_keys: ClassVar[list[str]] = [
        "trainer_resources",
        "num_workers",
        "use_gpu",
        "resources_per_worker",
        "placement_strategy",
        "_max_cpu_fraction_per_node",
        "accelerator_type",
        "elastic_resize_monitor_interval_s",
        "policy",
    ]
    """The fields of ScalingConfig that this trainer takes; a subclass may allow fewer."""
    _not_elastic: ClassVar[str] = "it runs in one process"
    """Why the number of its workers cannot change during a run; empty if it can."""
    _reports_by_itself: ClassVar[bool] = False
    """It calls report(), and not the user's code, which could ask for a validation."""
    _handles_checkpoint_freq: ClassVar[bool] = False
    _handles_checkpoint_at_end: ClassVar[bool] = False
    _given: tuple[tuple[Any, ...], dict[str, Any]]
    """What the constructor was called with: a search makes more trainers like this one, with changes."""
    _continues_search = False
    """Whether its trials continue from files, which someone else may have written."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            names = (getattr(cls, name, None) for name in ("_function_argument", "_config_argument"))
            cls.__init__ = with_checked_keywords(cls.__init__, *names)  # type: ignore[method-assign]

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        trainer = super().__new__(cls)
        trainer._given = arguments, keywords
        return trainer

    @names_what_was_meant(**SETTINGS_ELSEWHERE)
    def __init__(
        self,
        *,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        preprocessor: Any = None,
        resume_from_checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        validation_config: ValidationConfig | None = None,
    ) -> None:
        self.scaling_config = check_kind(scaling_config, ScalingConfig, "scaling_config") or ScalingConfig()
        self.run_config = check_kind(run_config, RunConfig, "run_config") or RunConfig()
        if datasets is not None and not isinstance(datasets, Mapping):
            raise ConfigError(f"datasets must be a dict of name to dataset, not {type(datasets).__name__}.")
        self.datasets = dict(datasets or {})
        self.preprocessor = preprocessor
        self.resume_from_checkpoint = as_checkpoint(resume_from_checkpoint)
        self.metadata = dict(metadata or {})
        self.validation_config = check_kind(validation_config, ValidationConfig, "validation_config")
        self._restore_path: str | None = None
        self._check_arguments()

    def _check_arguments(self) -> None:
        check_datasets(self.datasets, self.preprocessor)
        for field in dataclasses.fields(self.scaling_config):
            value = getattr(self.scaling_config, field.name)
            if value != field.default and field.name not in self._scaling_config_allowed_keys:
                raise ConfigError(f"ScalingConfig({field.name}={value!r}) is not taken by {type(self).__name__}.")
        if self.scaling_config.is_elastic and self._not_elastic:
            raise ConfigError(
                f"{type(self).__name__} does not support elastic num_workers={self.scaling_config.num_workers}: "
                f"{self._not_elastic}. Pass a single number."
            )
        if self.validation_config is not None:
            check_validation(self.validation_config, self.run_config, type(self).__name__, self._reports_by_itself)
        checkpoints = self.run_config.checkpoint_config
        for value, handled, name in (
            (checkpoints.checkpoint_frequency, self._handles_checkpoint_freq, "checkpoint_frequency"),
            (checkpoints.checkpoint_at_end, self._handles_checkpoint_at_end, "checkpoint_at_end"),
        ):
            if value and not handled:
                raise ConfigError(
                    f"CheckpointConfig({name}={value!r}) has no meaning for {type(self).__name__}: your function "
                    "decides when to checkpoint, by report(..., checkpoint=...)."
                )

    # -- what a subclass may override; runs in the worker ---------------------------------

    def setup(self) -> None:
        """Prepare; called first."""

    def preprocess_datasets(self) -> None:
        """Fit the preprocessor on "train" (if it is not fitted) and apply it to all datasets; called second."""
        if self.datasets:
            if self.preprocessor is None and self.resume_from_checkpoint is not None:
                self.preprocessor = self.resume_from_checkpoint.get_preprocessor()
            self.datasets = preprocessed(self.datasets, self.preprocessor)

    def training_loop(self) -> None:
        """Train, and report with the session."""
        raise NotImplementedError(f"{type(self).__name__} must define training_loop().")

    # -- running --------------------------------------------------------------------------

    def fit(self, *, raise_on_error: bool = True, resume: Literal["auto", "must"] | None = None) -> Result:
        """Train and return the result.

        Raises TrainingFailedError, which carries what was reached as `.result`; with
        raise_on_error=False that Result is returned instead, its `.error` set.

        resume="auto" continues the newest run with the same RunConfig(name=...) that did not finish, or starts a new
        one; resume="must" raises if there is nothing to continue.
        """
        from paceline.run.drive import drive
        from paceline.run.run import Run

        if resume is not None:
            return resumed(self, resume).fit(raise_on_error=raise_on_error)
        spec = self.to_run_spec()
        check_is_there(spec.resume_from)
        engine = choose_engine(spec.run_config.engine)
        result = drive(Run.open(spec, engine), raise_on_error)
        if self._restore_path is None:  # the files of a run that is continued may come from elsewhere
            self._made_here(result)
        return result

    def _made_here(self, result: Result) -> None:
        """Every file of the result was written by a run of this trainer in this process: it needs no trust."""
        for checkpoint in (result.checkpoint, *(each for each, _ in result.best_checkpoints)):
            if hasattr(type(checkpoint), "made_here"):
                checkpoint.made_here = True  # type: ignore[union-attr]  # only classes that ask for trust have it

    def _check_without_stop(self) -> None:
        """Refuse a run without RunConfig(stop=...), if it would not end by itself."""

    def _check_search_continued(self) -> None:
        """Called before the trials of a search continue from their files; raises if those need trust they lack."""
        self._continues_search = True

    def to_run_spec(self) -> RunSpec:
        """The complete description of the run that `fit()` makes."""
        if self.scaling_config.num_workers not in (None, 1):
            raise ConfigError(
                f"{type(self).__name__} runs in one process; num_workers={self.scaling_config.num_workers} needs a "
                "DataParallelTrainer."
            )
        return self._run_spec(TrainerLoop(self), config={})

    def _run_spec(self, train: Callable[[], None], config: Mapping[str, Any], **parts: Any) -> RunSpec:
        return RunSpec(
            trainer_name=type(self).__name__,
            train=train,
            config=config,
            scaling=self.scaling_config,
            run_config=self.run_config,
            resume_from=self.resume_from_checkpoint,
            restore_path=self._restore_path,
            metadata=self.metadata,
            validation=validation_spec(self.validation_config),
            identity=TrialIdentity.new(),
            dataset_names=tuple(self.datasets),
            again=tuple(name if "=" in name else f"{name}=..." for name in self._again()),
            code=self._code(),
            backend_described=self._described_backend(),
            **parts,
        )

    # -- for a search ---------------------------------------------------------------------

    def as_trainable(self) -> Self:
        """What a Tuner takes, and `tune.run`: the trainer itself."""
        return self

    def with_overrides(self, overrides: Mapping[str, Any], run_config: RunConfig | None = None) -> Self:
        """A trainer like this one with other arguments: dicts are merged key by key, a scaling_config field by field.

        Given as `run_config` it replaces this trainer's own.
        """
        given, keywords = self._given
        arguments, keywords = list(given), dict(keywords)
        names = positional_names(type(self))[: len(arguments)]
        for name, value in overrides.items():
            if name in names:
                place = names.index(name)
                arguments[place] = merged(arguments[place], value)
            else:
                keywords[name] = merged(keywords.get(name, getattr(self, name, None)), value)
        if run_config is not None:
            keywords["run_config"] = run_config
        trainer = type(self)(*arguments, **keywords)
        trainer._continues_search = self._continues_search
        return trainer

    def _room(self) -> tuple[Mapping[str, float], ...]:
        """What it needs on a cluster, if its one worker starts other processes there: its own, then theirs."""
        return ()

    @property
    def _saves_by_itself(self) -> bool:
        """Whether a checkpoint_frequency means something to it."""
        return self._handles_checkpoint_freq

    @classmethod
    def _keywords_beside(cls) -> tuple[str, ...] | None:
        """What may be given as `**keywords` of the constructor, if it has such; None: its own code decides."""
        return None

    # -- continuing an earlier run --------------------------------------------------------

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:
        """True if `path` holds a run that `restore` can continue."""
        return any(find_runs(path, storage_filesystem, []))

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        *given: Any,
        allow_changed_code: bool = True,
        storage_filesystem: Any = None,
        **arguments: Any,
    ) -> Self:
        """A trainer that continues the run at `path` (its trial directory, or the experiment's).

        Code is never read from disk: pass the same functions and callbacks again, the train function also without its
        name, right after the path. Plain settings (number of workers, checkpoint rules, config) are taken over unless
        given. Secrets are not stored, so a config that contains some must be passed again.

        Code that has changed since is noticed and used; with allow_changed_code=False it is an error.
        `storage_filesystem` is the one that the run had in its RunConfig.
        """
        arguments = restore_arguments(cls, cls._names_for_restore(), given, arguments)
        run_config = check_kind(arguments.get("run_config"), RunConfig, "run_config")
        if storage_filesystem is None and run_config is not None:
            storage_filesystem = run_config.storage_filesystem
        run = run_to_restore(path, storage_filesystem, cls.__name__)
        arguments = cls._restored_arguments(run.settings, arguments)
        if storage_filesystem is not None:
            arguments["run_config"] = replace(arguments["run_config"], storage_filesystem=storage_filesystem)
        if missing := missing_secrets(run.settings.get("secrets", ()), arguments):
            listed = ", ".join(map(repr, missing))
            raise RestoreError(f"The secrets of {run.place} are not stored: pass {listed} to restore() again.")
        trainer = cls(**arguments)
        check_backend(run, trainer)
        if not allow_changed_code:
            reject_changed_code(run, trainer._code())
        trainer._continue(run.place, run.settings)
        return trainer

    @classmethod
    def _names_for_restore(cls) -> list[str]:
        """The arguments that restore() takes without their name, after the path."""
        return positional_names(cls)

    def _again(self) -> list[str]:
        """The arguments that restore() must be given again, because they are not stored with a run."""
        given = {
            "datasets": self.datasets or None,
            "preprocessor": self.preprocessor,
            "storage_filesystem": self.run_config.storage_filesystem,
            "validation_config": self.validation_config,
        }
        resumed = self.resume_from_checkpoint
        in_memory = ["resume_from_checkpoint"] if resumed is not None and resumed.path is None else []
        run_config = run_config_again(self.run_config)
        with_code = [] if run_config is None else [f"run_config={run_config}"]
        if self.scaling_config.policy is not None:
            with_code.append("scaling_config")
        return [*(name for name, value in given.items() if value is not None), *in_memory, *with_code]

    def _described_backend(self) -> dict[str, Any]:
        """What a run's header says about the backend, which is code; empty for a trainer that cannot be given one."""
        return {}

    def _code(self) -> Any:
        """The user's code that runs in workers; None if all of it is this package's."""
        return None if type(self).__module__.startswith("paceline.") else type(self)

    def _continue(self, path: str, settings: Mapping[str, Any]) -> None:
        """`fit()` goes on with the run at `path`."""
        self._restore_path = path

    @classmethod
    def _restored_arguments(cls, settings: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
        """The constructor's arguments: those given now, else those of the earlier run."""
        given = {name: value for name, value in arguments.items() if value is not None}
        missing_again(settings.get("datasets", []), given.get("datasets"))
        if settings.get("had_validation") and "validation_config" not in given:
            raise RestoreError(
                "The run had a validation_config, whose function is not stored: pass validation_config= to restore() "
                "again."
            )
        if settings["resumed"] and "resume_from_checkpoint" not in given:
            if settings["resume_from"] is None:
                raise RestoreError(
                    "The run began from a checkpoint that was in memory only and has none of its own yet: pass "
                    "resume_from_checkpoint= to restore() again."
                )
            given["resume_from_checkpoint"] = settings["resume_from"]
        given.setdefault("scaling_config", restored(ScalingConfig, settings["scaling_config"]))
        if "run_config" not in given:
            given["run_config"] = restored(RunConfig, settings["run_config"])
            given["run_config"].name = settings["experiment_name"]  # earlier versions took names that are rejected now
        return given


class TrainerLoop:
    """Runs a trainer's own methods in the worker."""

    KNOWN_AS: ClassVar[Mapping[str, str]] = {"trainer": ""}

    def __init__(self, trainer: BaseTrainer) -> None:
        # Callbacks observe in the driver and need not be able to travel.
        self.trainer = copy.copy(trainer)
        self.trainer._given = (), {}
        self.trainer.run_config = copy.copy(trainer.run_config)
        self.trainer.run_config.callbacks = []
        self.trainer.run_config.stop = None

    def __call__(self) -> None:
        self.trainer.setup()
        self.trainer.preprocess_datasets()
        session = session_slot.current()
        if session is not None:
            session.preprocessor = self.trainer.preprocessor
        self.trainer.training_loop()


def merged(own: Any, other: Any) -> Any:
    """`other` laid over `own`: key by key for dicts, field by field for a ScalingConfig (`other` may be a dict)."""
    if isinstance(own, ScalingConfig) and isinstance(other, ScalingConfig | Mapping):
        return replace(own, **_settings_in(other))
    if isinstance(own, Mapping) and isinstance(other, Mapping):
        return {**own, **{name: merged(own.get(name), value) for name, value in other.items()}}
    return other


def _settings_in(scaling: ScalingConfig | Mapping[str, Any]) -> Mapping[str, Any]:
    """Those that were chosen; the others say nothing."""
    if isinstance(scaling, Mapping):
        return scaling
    values = {field.name: (getattr(scaling, field.name), field.default) for field in dataclasses.fields(scaling)}
    return {name: value for name, (value, default) in values.items() if value != default}
