"""TreeTrainer: what XGBoostTrainer and LightGBMTrainer share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from paceline.air.checks import reject_unknown, warn_at_users_line, whole_number
from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import ConfigError, RestoreError
from paceline.air.settings import storable
from paceline.run.spec import RunSpec
from paceline.train.arguments import SETTINGS_ELSEWHERE, DataParallelArguments, make_ingest
from paceline.train.data_parallel_trainer import DataParallelTrainer
from paceline.train.rounds import RoundReporter
from paceline.train.trees.datasets import check_columns, check_entries, check_names, check_types, tree_configs
from paceline.train.trees.task import TreeTask

if TYPE_CHECKING:
    from paceline.air.data_config import DatasetConfig
    from paceline.run.backend import BackendConfig

DEFAULT_ROUNDS = 10
_STORED = ("params", "label_column", "dmatrix_params", "num_boost_round")
_OWN_KEYWORDS = (
    *(*_STORED, "datasets", "dataset_config", "preprocessor", "scaling_config", "run_config"),
    *("resume_from_checkpoint", "metadata", "train_loop_config", "train_loop_per_worker"),
)


class TreeTrainer(DataParallelTrainer):
    """Boosted trees on all workers, each with its part of the rows.

    Either `params`, `label_column` and `datasets` say what to train, and each boosting round is one iteration; or
    `train_loop_per_worker` is a function of the user's, which calls the library itself.
    """

    _reports_by_itself: ClassVar[bool] = True
    _handles_checkpoint_freq: ClassVar[bool] = True
    _handles_checkpoint_at_end: ClassVar[bool] = True

    _library: ClassVar[str]
    """As its users write it."""
    _train_keywords: ClassVar[tuple[str, ...]]
    """What the library's train function takes beside what the trainer gives it."""
    _refused_keywords: ClassVar[Mapping[str, str]]
    """Keywords of that function that make no sense here, and what to write instead."""
    _matrix_keywords: ClassVar[tuple[str, ...]]
    """What `dmatrix_params` may hold for a dataset."""
    _column_keywords: ClassVar[tuple[str, ...]]
    """Those of them whose value is the name of a column."""
    _quantile_objectives: ClassVar[frozenset[str]] = frozenset()
    """Those whose leaves are medians or other quantiles, which the library cannot compute over all workers."""

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any] | None,
        *,
        train_loop_config: Mapping[str, Any] | None,
        params: Mapping[str, Any] | None,
        label_column: str | None,
        dmatrix_params: Mapping[str, Mapping[str, Any]] | None,
        num_boost_round: int | None,
        train_kwargs: Mapping[str, Any],
        backend_config: BackendConfig,
        **common: Unpack[DataParallelArguments],
    ) -> None:
        self.train_loop_config = train_loop_config
        self.params = params
        self.label_column = label_column
        self.dmatrix_params = dmatrix_params
        self.num_boost_round = num_boost_round
        self.train_kwargs = dict(train_kwargs)
        self._has_function = train_loop_per_worker is not None
        super().__init__(
            train_loop_per_worker if train_loop_per_worker is not None else _no_function,
            train_loop_config=train_loop_config,
            backend_config=backend_config,
            **common,
        )

    # -- what a library brings --------------------------------------------------------------

    @abstractmethod
    def _loop(self, task: TreeTask) -> Callable[[], None]:
        """What every worker runs."""

    @abstractmethod
    def _approximate_metrics(self) -> list[str]:
        """The metrics that cannot be combined exactly from the workers' parts of a dataset."""

    def _check_params(self, params: Mapping[str, Any]) -> None:
        """Refuse parameters of the library that cannot work here."""

    def _objective(self) -> Any:
        """The objective among the parameters."""
        return (self.params or {}).get("objective")

    # -- arguments --------------------------------------------------------------------------

    def _check_arguments(self) -> None:
        known = (*self._train_keywords, *self._refused_keywords, *_OWN_KEYWORDS)
        reject_unknown(f"{type(self).__name__}()", self.train_kwargs, known, SETTINGS_ELSEWHERE)
        if self._has_function:
            self._check_function_form()
        else:
            self._check_table_form()
        super()._check_arguments()

    def _check_function_form(self) -> None:
        given = {**{name: getattr(self, name) for name in _STORED}, **self.train_kwargs}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(
                    f"{type(self).__name__} got a train function and {name}=: with a function of your own, call the "
                    f"library's train() in it, and pass values by train_loop_config."
                )
        checkpoints = self.run_config.checkpoint_config
        if checkpoints.checkpoint_frequency or checkpoints.checkpoint_at_end:
            raise ConfigError(
                "CheckpointConfig(checkpoint_frequency, checkpoint_at_end) have no meaning with a train function: give "
                "the ReportCallback in it frequency= and checkpoint_at_end=."
            )

    def _check_table_form(self) -> None:
        name = type(self).__name__
        if self.train_loop_config is not None:
            raise ConfigError(f"{name}(train_loop_config=...) goes with a train function, which was not given.")
        if not isinstance(self.params, Mapping):
            raise ConfigError(
                f"{name} needs params=, a dict of {self._library} parameters such as {{'max_depth': 6}}, not "
                f"{self.params!r}."
            )
        if not isinstance(self.label_column, str):
            given = "" if self.label_column is None else f", not {self.label_column!r}"
            raise ConfigError(f"{name} needs label_column=, the name of the column to predict{given}.")
        self.num_boost_round = whole_number(
            DEFAULT_ROUNDS if self.num_boost_round is None else self.num_boost_round,
            "num_boost_round",
            least=1,
            advice="It is the number of boosting rounds.",
        )
        check_names(self.datasets, self.dmatrix_params or {}, name)
        self._check_keywords()
        self._check_params(self.params)

    def _check_keywords(self) -> None:
        name = type(self).__name__
        for keyword in self.train_kwargs:
            if keyword in self._refused_keywords:
                raise ConfigError(f"{name}({keyword}=...): {self._refused_keywords[keyword]}")
        callbacks = self.train_kwargs.get("callbacks")
        if callbacks is not None and not isinstance(callbacks, list | tuple):
            raise ConfigError(f"{name}(callbacks=...) takes a list, not {type(callbacks).__name__}: callbacks=[...].")
        if any(isinstance(callback, RoundReporter) for callback in callbacks or ()):
            raise ConfigError(
                "callbacks=[ReportCallback()]: the trainer reports every round itself. The callback is for a train "
                "function of your own; checkpoints come by CheckpointConfig(checkpoint_frequency=...)."
            )
        for dataset, entries in (self.dmatrix_params or {}).items():
            check_entries(dataset, entries, self._matrix_keywords, self._column_keywords, str(self.label_column))

    @property
    def _saves_by_itself(self) -> bool:
        return not self._has_function

    @classmethod
    def _keywords_beside(cls) -> tuple[str, ...]:
        return (*cls._train_keywords, *cls._refused_keywords)  # the constructor says what is wrong with the latter

    # -- running ----------------------------------------------------------------------------

    def to_run_spec(self) -> RunSpec:
        if self._has_function:
            return super().to_run_spec()
        if self.scaling_config.max_workers is None:
            raise ConfigError("How many workers? Pass scaling_config=ScalingConfig(num_workers=2), for example.")
        configs = self.get_dataset_config()
        self._check_columns()
        if self.scaling_config.max_workers > 1:
            self._warn_about_approximations()
        ingest = make_ingest(self.datasets, configs, self.preprocessor, self.resume_from_checkpoint, read_once=True)
        plain, code = storable(self.train_kwargs)
        arguments = {**{name: getattr(self, name) for name in _STORED}, "train_kwargs": plain, "code": code}
        return self._run_spec(
            self._loop(self._task()),
            {"params": dict(self.params or {})},
            backend_config=self.backend_config,
            ingest=ingest,
            numbers_by_iteration=True,
            arguments=arguments,
        )

    def _warn_about_approximations(self) -> None:
        metrics = self._approximate_metrics()
        if metrics:
            warn_at_users_line(
                f"{', '.join(metrics)} on 'train' is approximate: each worker evaluates its own rows, and the weighted "
                "mean of that is reported. Other datasets are evaluated whole and exactly, unless dataset_config "
                "splits them."
            )
        objective = self._objective()
        if isinstance(objective, str) and objective in self._quantile_objectives:
            warn_at_users_line(
                f"objective={objective!r} with several workers: {self._library} takes the mean of what each of them "
                "finds for its own rows as the value of a leaf. That is near to the value for all rows only if these "
                "are in random order: datasets={'train': dataset.random_shuffle()}."
            )

    def get_dataset_config(self) -> dict[str, DatasetConfig]:
        if self._has_function:
            return super().get_dataset_config()
        return tree_configs(self.dataset_config, self.datasets, in_parts=not self._approximate_metrics())

    def _check_columns(self) -> None:
        """Mistakes that the columns show are told before workers start, where these can be known."""
        from paceline.data.dataset import Dataset

        assert self.label_column is not None
        if self.preprocessor is None and self.resume_from_checkpoint is None:
            wanted = {name: {"label_column": self.label_column, **self._columns_of(name)} for name in self.datasets}
            check_columns(self.datasets, wanted)
            train = self.datasets[TRAIN_DATASET_KEY]
            if isinstance(train, Dataset):
                entries = (self.dmatrix_params or {}).get(TRAIN_DATASET_KEY, {})
                beside = set(wanted[TRAIN_DATASET_KEY].values())
                check_types(TRAIN_DATASET_KEY, train.schema(), self.label_column, entries, beside)

    def _columns_of(self, dataset: str) -> dict[str, str]:
        entries = (self.dmatrix_params or {}).get(dataset, {})
        return {keyword: entries[keyword] for keyword in self._column_keywords if keyword in entries}

    def _task(self) -> TreeTask:
        assert self.params is not None
        assert self.label_column is not None
        assert self.num_boost_round is not None
        checkpoints = self.run_config.checkpoint_config
        return TreeTask(
            params=dict(self.params),
            label_column=self.label_column,
            num_boost_round=self.num_boost_round,
            matrix_params={name: dict(entries) for name, entries in (self.dmatrix_params or {}).items()},
            train_kwargs=self.train_kwargs,
            checkpoint_frequency=checkpoints.checkpoint_frequency,
            checkpoint_at_end=checkpoints.checkpoint_at_end is not False,
        )

    # -- continuing an earlier run ------------------------------------------------------------

    def _again(self) -> list[str]:
        names = super()._again()
        if self._has_function:
            return names
        _, not_plain = storable({"params": self.params, **self.train_kwargs})
        return [*not_plain, *(name for name in names if name != self._function_argument)]

    def _code(self) -> Any:
        return super()._code() if self._has_function else None

    @classmethod
    def _restored_function(cls, settings: Mapping[str, Any], given: dict[str, Any]) -> None:
        stored = settings.get("arguments") or {}
        if not stored:  # it had a function
            super()._restored_function(settings, given)
            return
        more = given.get("num_boost_round", 0)
        if settings["finished"] and stored["num_boost_round"] and more > stored["num_boost_round"]:
            raise RestoreError(
                f"The run has finished its {stored['num_boost_round']} rounds, and a finished run is not continued. To "
                f"train {more} in all, start a new one: {cls.__name__}(num_boost_round={more}, "
                "resume_from_checkpoint=Result.from_path(path).checkpoint, ...)."
            )
        missing = [name for name in stored["code"] if name not in given]
        if missing:
            raise RestoreError(
                f"{cls.__name__}.restore(): {', '.join(f'{name}=' for name in missing)} of the run held code or "
                "secrets, which are not stored: pass it again."
            )
        for name in _STORED:
            if name not in given and stored[name] is None and name in ("params", "label_column"):
                raise RestoreError(
                    f"{cls.__name__}.restore(): the run's {name} cannot be stored as plain data: pass it again."
                )
            if stored[name] is not None:
                given.setdefault(name, stored[name])
        _check_same_objective(stored["params"], given["params"])
        for name, value in stored["train_kwargs"].items():
            given.setdefault(name, value)


def _no_function() -> None:
    """Stands where a train function would; the loop of the library runs instead."""


def _check_same_objective(stored: Mapping[str, Any] | None, given: Mapping[str, Any]) -> None:
    """Rates and limits may change when a run goes on; trees of different objectives do not add up to a model."""
    for name in ("objective", "num_class", "booster", "boosting"):
        if stored is not None and stored.get(name) != given.get(name):
            raise RestoreError(
                f"The run has trained with {name}={stored.get(name)!r}; restore() was given {given.get(name)!r}. "
                "Start a new run for that."
            )
