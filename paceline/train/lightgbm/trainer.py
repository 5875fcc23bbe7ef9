"""LightGBMTrainer: boosted trees of LightGBM on all workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.train.arguments import chosen_config
from paceline.train.lightgbm.backend import LightGBMConfig, LightGBMLoopConfig
from paceline.train.lightgbm.callback import WithLastCheckpoint
from paceline.train.lightgbm.loop import LightGBMLoop
from paceline.train.lightgbm.metrics import approximate_metrics, check_metrics, ranks_rows
from paceline.train.lightgbm.params import (
    COLUMN_KEYWORDS,
    GROUP_KEYWORDS,
    QUANTILE_OBJECTIVES,
    check_params,
    rounds_of,
    value_of,
)
from paceline.train.trees.datasets import check_queries
from paceline.train.trees.trainer import TreeTrainer

if TYPE_CHECKING:
    import lightgbm

    from paceline.air.checkpoint import Checkpoint
    from paceline.air.config import RunConfig, ScalingConfig
    from paceline.air.data_config import DataConfig, DatasetConfig
    from paceline.run.spec import RunSpec
    from paceline.train.trees.task import TreeTask


class LightGBMTrainer(TreeTrainer):
    """Trains boosted trees with LightGBM on all workers, each with its part of the rows.

        trainer = LightGBMTrainer(
            params={"objective": "binary"},
            label_column="y",
            datasets={"train": train, "valid": valid},
            num_boost_round=100,
            scaling_config=ScalingConfig(num_workers=2),
        )
        booster = trainer.fit().checkpoint.get_model()

    Each round is one iteration, with metrics "<dataset>-<metric>" of all rows. `dmatrix_params` says what else there is
    in the columns: {"train": {"weight": "w", "group": "query", "init_score": ..., "position": ..., "ignore": [...],
    "categorical_feature": [...]}}. Columns of text are categories. Callbacks, `feval` and objectives that are
    functions work as in `lightgbm.train`.

    The model is the one that LightGBM trains on all rows in a single process, up to the order of additions. Exceptions
    are LightGBM's: workers estimate how many rows a leaf has from sums of hessians (min_data_in_leaf; not where these
    are constant, as in plain regression), draw rows each from its own (bagging), and average where training starts
    (boost_from_average) and the leaves of regression_l1, quantile and mape: shuffle rows that are sorted by label.

    With a function as `train_loop_per_worker` that function calls `lightgbm.train` itself, with the parameters of
    `get_network_params()` and a `ReportCallback`.
    """

    _library: ClassVar[str] = "LightGBM"
    _train_keywords: ClassVar[tuple[str, ...]] = ("callbacks", "feval", "keep_training_booster")
    _refused_keywords: ClassVar[Mapping[str, str]] = {
        "init_model": "to train a model further, pass resume_from_checkpoint=LightGBMCheckpoint.from_model(booster).",
        "train_set": "pass datasets={'train': ...}.",
        "valid_sets": "every dataset besides 'train' is evaluated: pass datasets={'train': ..., 'valid': ...}.",
        "valid_names": "datasets are called by their keys: datasets={'train': ..., 'valid': ...}.",
        "early_stopping_rounds": "use callbacks=[lightgbm.early_stopping(n)], or params={'early_stopping_round': n}.",
        "verbose_eval": "use callbacks=[lightgbm.log_evaluation(n)].",
        "evals_result": "the metrics of all rounds are in result.metrics_dataframe.",
        "categorical_feature": "use dmatrix_params={'train': {'categorical_feature': [...]}}.",
        "feature_name": "use dmatrix_params={'train': {'feature_name': [...]}}.",
        "fobj": "pass the function as params={'objective': function}.",
    }
    _matrix_keywords: ClassVar[tuple[str, ...]] = (
        *COLUMN_KEYWORDS,
        *("categorical_feature", "feature_name", "free_raw_data", "ignore"),
    )
    _column_keywords: ClassVar[tuple[str, ...]] = COLUMN_KEYWORDS

    _quantile_objectives: ClassVar[frozenset[str]] = QUANTILE_OBJECTIVES

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any] | None = None,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        label_column: str | None = None,
        datasets: Mapping[str, Any] | None = None,
        dmatrix_params: Mapping[str, Mapping[str, Any]] | None = None,
        num_boost_round: int | None = None,
        lightgbm_config: LightGBMConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        dataset_config: Mapping[str, DatasetConfig] | DataConfig | None = None,
        run_config: RunConfig | None = None,
        preprocessor: Any = None,
        resume_from_checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **train_kwargs: Any,
    ) -> None:
        config = chosen_config("LightGBMTrainer", LightGBMConfig, lightgbm_config=lightgbm_config)
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            params=params,
            label_column=label_column,
            dmatrix_params=dmatrix_params,
            num_boost_round=rounds_of(params, num_boost_round),
            train_kwargs=train_kwargs,
            backend_config=LightGBMLoopConfig() if train_loop_per_worker is None else config,
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            run_config=run_config,
            datasets=datasets,
            preprocessor=preprocessor,
            resume_from_checkpoint=resume_from_checkpoint,
            metadata=metadata,
        )

    @classmethod
    def get_model(cls, checkpoint: Checkpoint) -> lightgbm.Booster:
        """The booster of a checkpoint: `checkpoint.get_model()`."""
        from paceline.train.lightgbm.checkpoint import LightGBMCheckpoint

        return LightGBMCheckpoint.from_checkpoint(checkpoint).get_model()

    def _loop(self, task: TreeTask) -> Callable[[], None]:
        return LightGBMLoop(task)

    def _approximate_metrics(self) -> list[str]:
        return approximate_metrics(self.params or {}, self.train_kwargs)

    def _objective(self) -> Any:
        return value_of(self.params or {}, "objective")

    def _check_params(self, params: Mapping[str, Any]) -> None:
        check_params(params, self.scaling_config.max_workers)
        check_metrics(params)
        if ranks_rows(params):
            check_queries(self.datasets, self.dmatrix_params or {}, GROUP_KEYWORDS)

    def to_run_spec(self) -> RunSpec:
        spec = super().to_run_spec()
        return replace(spec, train=WithLastCheckpoint(spec.train)) if self._has_function else spec
