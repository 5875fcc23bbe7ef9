"""SklearnTrainer: fits one scikit-learn estimator in a worker process, with scores and cross-validation."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air import session
from paceline.air.checks import check_bool, warn_at_users_line
from paceline.air.config import ScalingConfig
from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import ConfigError, MissingDatasetError, RestoreError
from paceline.air.resources import usable_cores
from paceline.air.settings import storable
from paceline.engine.choose import choose_engine
from paceline.run.attempt import modules_to_preload
from paceline.run.backend import Backend, BackendConfig
from paceline.train.arguments import missing_again
from paceline.train.base_trainer import BaseTrainer
from paceline.train.sklearn.arguments import (
    check_fit_params,
    check_label,
    check_scoring,
    checked_cv,
    cross_validation,
    fits_by_groups,
    prepared_estimator,
    scores,
)
from paceline.train.sklearn.checkpoint import SklearnCheckpoint
from paceline.train.sklearn.cpus import cpu_budget, set_cpus, uses_cpus
from paceline.train.sklearn.features import FeatureRows, check_columns, like_training, read_rows

if TYPE_CHECKING:
    from paceline.air.config import RunConfig
    from paceline.run.spec import RunSpec

CV_KEY = "cv"
ROW_ARGUMENTS = ("sample_weight", "groups")
"""Fit parameters with one value per row: text for one of them is the name of a column."""
_STORED = ("label_column", "params", "scoring", "cv", "return_train_score_cv", "parallelize_cv", "set_estimator_cpus")


class SklearnBackend(Backend):
    """There is one worker, so nothing is to be connected."""

    preload: ClassVar[tuple[str, ...]] = (
        "paceline.train.sklearn.trainer",
        "paceline.data.dataset",
        "sklearn.model_selection",
        "skops.io",
    )


@dataclass
class SklearnConfig(BackendConfig):
    """Has no settings."""

    @property
    def backend_cls(self) -> type[Backend]:
        return SklearnBackend


class SklearnTrainer(BaseTrainer):
    """Fits `estimator` on the dataset "train" and scores it on the others. It is not distributed.

        trainer = SklearnTrainer(
            estimator=RandomForestClassifier(),
            label_column="target",
            datasets={"train": train_rows, "valid": valid_rows},
            cv=5,
            scaling_config=ScalingConfig(trainer_resources={"CPU": 4}),
        )
        result = trainer.fit()
        result.metrics["valid"]["test_score"], result.metrics["cv"]["test_score_mean"]
        forest = result.checkpoint.get_estimator()

    - `estimator`: any scikit-learn estimator; it is cloned, and `params` are set on the clone.
    - `label_column`: the column to predict; None for estimators that learn without labels.
    - `scoring`: the name of a scorer, a function (estimator, X, y), or a list or dict of those; None: the
      estimator's own score().
    - `cv`: a number of folds, a splitter or a list of splits: cross-validation on "train", besides the fit on all
      of its rows. A `preprocessor` has seen all of these rows, those of every fold too; what must not is a step of a
      scikit-learn pipeline. `return_train_score_cv` adds the scores on the rows that each fold was fitted on.
    - `parallelize_cv`: True: the folds share the CPUs; False: the estimator has them, fold by fold; None: the folds,
      unless the estimator can use several CPUs itself.
    - `set_estimator_cpus`: give the CPUs of ScalingConfig(trainer_resources={"CPU": n}) to the estimator, by its
      `n_jobs` or those of its parts. Without trainer_resources they are left as they are.
    - `fit_params` go to the estimator's fit(). "sample_weight" and "groups" may be the name of a column, which then
      is no feature. Groups also go to cross-validation.
    """

    _scaling_config_allowed_keys: ClassVar[list[str]] = ["trainer_resources", "num_workers"]

    def __init__(
        self,
        *,
        estimator: Any,
        datasets: Mapping[str, Any],
        label_column: str | None = None,
        params: Mapping[str, Any] | None = None,
        scoring: Any = None,
        cv: Any = None,
        return_train_score_cv: bool = False,
        parallelize_cv: bool | None = None,
        set_estimator_cpus: bool = True,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        preprocessor: Any = None,
        metadata: Mapping[str, Any] | None = None,
        **fit_params: Any,
    ) -> None:
        import sklearn

        self.estimator = prepared_estimator(estimator, params)
        self.params = params
        self.label_column = label_column
        self.scoring = scoring
        self.cv = checked_cv(cv)
        self.return_train_score_cv = return_train_score_cv
        self.parallelize_cv = parallelize_cv
        self.set_estimator_cpus = set_estimator_cpus
        self.fit_params = fit_params
        self._sklearn_settings = sklearn.get_config()  # the worker's shall be the same
        super().__init__(
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            preprocessor=preprocessor,
            metadata=metadata,
        )
        # The worker's imports begin while the user's own program goes on.
        choose_engine(self.run_config.engine).warm(modules_to_preload(SklearnConfig()), 1)

    # -- arguments --------------------------------------------------------------------------

    def _check_arguments(self) -> None:
        checkpoints = self.run_config.checkpoint_config
        for name in ("checkpoint_frequency", "checkpoint_at_end"):
            if value := getattr(checkpoints, name):
                raise ConfigError(
                    f"CheckpointConfig({name}={value!r}) has no meaning for SklearnTrainer: scikit-learn fits in one "
                    "go, and the fitted estimator always is the one checkpoint. Leave it out."
                )
        super()._check_arguments()
        own = [name for name in inspect.signature(SklearnTrainer).parameters if name != "fit_params"]
        check_fit_params(self.estimator, self.fit_params, own, self.cv)
        for name in ("return_train_score_cv", "set_estimator_cpus"):
            check_bool(getattr(self, name), name)
        if self.parallelize_cv is not None:
            check_bool(self.parallelize_cv, "parallelize_cv", advice="None: as suits the estimator.")
        self._check_datasets()
        check_label(self.estimator, self.label_column)
        if self.cv is not None or len(self.datasets) > 1:
            check_scoring(self.estimator, self.scoring)
        elif self.scoring is not None:
            warn_at_users_line("scoring is given, but nothing is scored: there is no dataset but 'train', and no cv.")
        self._check_columns()

    def _check_datasets(self) -> None:
        if TRAIN_DATASET_KEY not in self.datasets:
            raise MissingDatasetError(
                "SklearnTrainer fits on the dataset 'train', which was not given: pass datasets={'train': ...}"
                f"{f' (given: {sorted(self.datasets)})' if self.datasets else ''}."
            )
        if CV_KEY in self.datasets:
            raise MissingDatasetError(
                "A dataset cannot be called 'cv': the result has the scores of cross-validation under that name."
            )

    def _check_columns(self) -> None:
        """Names of columns that are not there are told at once, where that can be known without running anything."""
        from paceline.data.dataset import Dataset

        if self.preprocessor is not None:
            return
        for name, dataset in self.datasets.items():
            schema = dataset._known_schema() if isinstance(dataset, Dataset) else None
            if schema is not None:
                wanted = {} if self.label_column is None else {"label_column": self.label_column}
                of_rows = self._row_columns() if name == TRAIN_DATASET_KEY else {}
                check_columns(name, schema.names, {**wanted, **of_rows})

    def _row_columns(self) -> dict[str, str]:
        """The columns of "train" that fit parameters name."""
        return {
            name: value
            for name, value in self.fit_params.items()
            if name.rpartition("__")[2] in ROW_ARGUMENTS and isinstance(value, str)
        }

    # -- running ----------------------------------------------------------------------------

    def to_run_spec(self) -> RunSpec:
        arguments = {name: getattr(self, name) for name in _STORED} | self.fit_params
        if self.preprocessor is not None:
            arguments["preprocessor"] = self.preprocessor
        plain, again = storable(arguments)
        stored = {
            "plain": plain,
            "again": again,
            "datasets": sorted(self.datasets),
            "trainer_resources": self.scaling_config.trainer_resources,
        }
        return replace(super().to_run_spec(), arguments=stored, backend_config=SklearnConfig())

    def _again(self) -> list[str]:
        _, not_plain = storable({name: getattr(self, name) for name in _STORED} | self.fit_params)
        return ["estimator", *not_plain, *super()._again()]

    @classmethod
    def _restored_arguments(cls, settings: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
        stored = settings["arguments"]
        missing = [name for name in ("estimator", "datasets", *stored["again"]) if arguments.get(name) is None]
        if missing:
            raise RestoreError(
                f"SklearnTrainer.restore() needs {', '.join(f'{name}=' for name in missing)} again: code, data and "
                "secrets are not stored with a run."
            )
        missing_again(stored["datasets"], arguments["datasets"])
        scaling = ScalingConfig(trainer_resources=stored["trainer_resources"])
        again = {"scaling_config": scaling, **stored["plain"], **arguments}
        return super()._restored_arguments({**settings, "datasets": stored["datasets"]}, again)

    # -- in the worker ----------------------------------------------------------------------

    def training_loop(self) -> None:
        """Fit, score, cross-validate, and report once."""
        import sklearn

        if session.get_checkpoint() is not None:
            return  # an attempt that failed afterwards has reported it
        with sklearn.config_context(**self._sklearn_settings), cpu_budget(self._cpus(), session.get_trial_dir()):
            estimator, metrics = self._fitted_and_scored()
        session.report(metrics, checkpoint=SklearnCheckpoint.from_estimator(estimator))

    def _fitted_and_scored(self) -> tuple[Any, dict[str, Any]]:
        from sklearn.base import clone

        train = read_rows(TRAIN_DATASET_KEY, self.datasets[TRAIN_DATASET_KEY], self.label_column, self._row_columns())
        params = {**self.fit_params, **train.others}
        groups = params.get("groups")
        if not fits_by_groups(self.estimator):
            params.pop("groups", None)
        estimator = clone(self.estimator)
        cpus_before = self._give_cpus(estimator, self._cpus())
        started = time.perf_counter()
        estimator.fit(train.features, *([] if train.labels is None else [train.labels]), **params)
        metrics: dict[str, Any] = {"fit_time": time.perf_counter() - started}
        for name, dataset in self.datasets.items():
            if name != TRAIN_DATASET_KEY:
                rows = read_rows(name, dataset, self.label_column, {})
                features = like_training(rows.features, list(train.features.columns), f"The dataset {name!r}")
                metrics[name] = scores(estimator, self.scoring, FeatureRows(features, rows.labels))
        if self.cv is not None:
            metrics[CV_KEY] = self._cross_validated(train, params, groups)
        # The number of CPUs is a matter of this run: who uses the estimator later has others.
        return estimator.set_params(**cpus_before), metrics

    def _cross_validated(self, train: FeatureRows, params: Mapping[str, Any], groups: Any) -> dict[str, Any]:
        from sklearn.base import clone

        estimator = clone(self.estimator)
        cpus = self._cpus()
        in_parallel = self.parallelize_cv if self.parallelize_cv is not None else not uses_cpus(estimator)
        if in_parallel:
            jobs = cpus or (usable_cores() if self.parallelize_cv else 1)
            self._give_cpus(estimator, 1 if jobs > 1 else None)
        else:
            jobs = 1
            self._give_cpus(estimator, cpus)
        return cross_validation(
            estimator,
            train,
            cv=self.cv,
            scoring=self.scoring,
            fit_params=params,
            groups=groups,
            return_train_score=self.return_train_score_cv,
            jobs=jobs,
        )

    def _cpus(self) -> int | None:
        """The CPUs that this run was given; None: nothing was said about it."""
        asked = (self.scaling_config.trainer_resources or {}).get("CPU")
        return None if asked is None else max(1, min(int(asked), usable_cores()))

    def _give_cpus(self, estimator: Any, cpus: int | None) -> dict[str, Any]:
        return set_cpus(estimator, cpus) if cpus is not None and self.set_estimator_cpus else {}
