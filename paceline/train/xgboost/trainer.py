"""XGBoostTrainer: XGBoost on all workers, each with its part of the rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air.errors import ConfigError
from paceline.train.arguments import chosen_config
from paceline.train.trees.datasets import check_queries
from paceline.train.trees.trainer import TreeTrainer
from paceline.train.xgboost.backend import XGBoostConfig, XGBoostLoopConfig
from paceline.train.xgboost.loop import COLUMN_KEYWORDS, XGBoostLoop, approximate_metrics, ranks_rows

if TYPE_CHECKING:
    import xgboost

    from paceline.air.checkpoint import Checkpoint
    from paceline.air.config import RunConfig, ScalingConfig
    from paceline.air.data_config import DataConfig, DatasetConfig
    from paceline.train.trees.task import TreeTask


_SEPARATORS = "-: \t\n"
"""XGBoost writes "<dataset>-<metric>:<value>" and takes it apart again."""


class XGBoostTrainer(TreeTrainer):
    """Trains a booster on `datasets["train"]`, and evaluates it on all datasets after each round.

        trainer = XGBoostTrainer(
            params={"objective": "binary:logistic", "eval_metric": ["logloss", "error"]},
            label_column="target",
            num_boost_round=20,
            datasets={"train": train, "valid": valid},
            scaling_config=ScalingConfig(num_workers=2),
        )
        booster = trainer.fit().checkpoint.get_model()

    Each round is one iteration with the metrics "train-logloss", "valid-logloss", ... over the rows of all workers.
    `dmatrix_params` names, by dataset, columns that are no features: "weight", "qid", "base_margin",
    "label_lower_bound", "label_upper_bound"; and "ignore", "missing", "max_bin", "feature_names", "feature_types",
    "feature_weights", "enable_categorical", "nthread", "external_memory" (True: the rows are read from disk while
    XGBoost trains; by itself it does so where they would not fit into memory). Other keywords are those of
    `xgboost.train`. `num_boost_round` counts the rounds of a checkpoint that training starts from.

    With a `train_loop_per_worker` the workers are connected, and the function calls `xgboost.train` itself, with a
    `ReportCallback`.
    """

    _library: ClassVar[str] = "XGBoost"
    _train_keywords: ClassVar[tuple[str, ...]] = (
        *("obj", "custom_metric", "maximize", "early_stopping_rounds", "verbose_eval", "callbacks"),
    )
    _refused_keywords: ClassVar[Mapping[str, str]] = {
        "xgb_model": "a training is continued with resume_from_checkpoint=XGBoostCheckpoint.from_model(booster).",
        "evals": "every dataset in datasets= is evaluated: pass datasets={'train': ..., 'valid': ...}.",
        "dtrain": "the training rows are datasets={'train': ...}; columns of weights and so on are dmatrix_params.",
        "evals_result": "workers cannot fill a dict of this process; result.metrics_dataframe has every round.",
        "feval": "XGBoost calls it custom_metric= by now; it gets transformed predictions.",
    }
    _matrix_keywords: ClassVar[tuple[str, ...]] = (
        *COLUMN_KEYWORDS,
        *("missing", "max_bin", "feature_weights", "feature_names", "feature_types", "enable_categorical", "nthread"),
        *("ignore", "external_memory"),
    )
    _column_keywords: ClassVar[tuple[str, ...]] = COLUMN_KEYWORDS
    _quantile_objectives: ClassVar[frozenset[str]] = frozenset(["reg:absoluteerror", "reg:quantileerror"])

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any] | None = None,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        xgboost_config: XGBoostConfig | None = None,
        params: Mapping[str, Any] | None = None,
        label_column: str | None = None,
        datasets: Mapping[str, Any] | None = None,
        dmatrix_params: Mapping[str, Mapping[str, Any]] | None = None,
        num_boost_round: int | None = None,
        scaling_config: ScalingConfig | None = None,
        dataset_config: Mapping[str, DatasetConfig] | DataConfig | None = None,
        run_config: RunConfig | None = None,
        preprocessor: Any = None,
        resume_from_checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **train_kwargs: Any,
    ) -> None:
        config = chosen_config("XGBoostTrainer", XGBoostConfig, xgboost_config=xgboost_config)
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            params=params,
            label_column=label_column,
            dmatrix_params=dmatrix_params,
            num_boost_round=num_boost_round,
            train_kwargs=train_kwargs,
            backend_config=XGBoostLoopConfig(config.timeout_s) if train_loop_per_worker is None else config,
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            run_config=run_config,
            datasets=datasets,
            preprocessor=preprocessor,
            resume_from_checkpoint=resume_from_checkpoint,
            metadata=metadata,
        )

    @classmethod
    def get_model(cls, checkpoint: Checkpoint) -> xgboost.Booster:
        """The booster of a checkpoint: `checkpoint.get_model()`."""
        from paceline.train.xgboost.checkpoint import XGBoostCheckpoint

        return XGBoostCheckpoint.from_checkpoint(checkpoint).get_model()

    def _loop(self, task: TreeTask) -> Callable[[], None]:
        return XGBoostLoop(task)

    def _approximate_metrics(self) -> list[str]:
        return approximate_metrics(self.params or {}, self.train_kwargs)

    def _check_params(self, params: Mapping[str, Any]) -> None:
        workers = self.scaling_config.max_workers or 1
        for name, advice in _MISPLACED.items():
            if name in params:
                raise ConfigError(f"XGBoostTrainer(params={{{name!r}: ...}}): {advice}")
        for name, keyword in (("objective", "obj"), ("eval_metric", "custom_metric")):
            if callable(params.get(name)):
                raise ConfigError(f"params[{name!r}] is a function: pass it as {keyword}= to the trainer.")
        if params.get("booster") == "gblinear":
            raise ConfigError(
                "booster='gblinear' is not trained here: XGBoost does not distribute it, and does not count its "
                "rounds. Use 'gbtree' or 'dart'."
            )
        if params.get("process_type") == "update":
            raise ConfigError("process_type='update' changes a finished model: do it in a train function of your own.")
        if params.get("tree_method") == "exact" and workers > 1:
            raise ConfigError("tree_method='exact' works on one worker only. Use 'hist' or 'approx'.")
        if "cox" in f"{params.get('objective')} {params.get('eval_metric')}" and workers > 1:
            raise ConfigError(
                "Cox regression (survival:cox, cox-nloglik) works on one worker only: XGBoost compares the rows of "
                "each worker among themselves. Use ScalingConfig(num_workers=1), or survival:aft."
            )
        if ranks_rows(params):  # XGBoost would take all rows of a worker for one query
            check_queries(self.datasets, self.dmatrix_params or {}, ["qid"])
        for name in self.datasets:
            if any(sign in name for sign in _SEPARATORS):
                raise ConfigError(
                    f"datasets={{{name!r}: ...}}: with XGBoost the name of a dataset must be without '-', ':' and "
                    "spaces, because metrics are named '<dataset>-<metric>'."
                )


_MISPLACED: Mapping[str, str] = {
    **dict.fromkeys(
        ("num_boost_round", "n_estimators", "num_round"),
        "the number of rounds is an argument of the trainer, num_boost_round=.",
    ),
    **dict.fromkeys(
        ("early_stopping_rounds", "callbacks", "custom_metric", "verbose_eval"), "it is an argument of the trainer."
    ),
}
