"""BatchPredictor: predictions for a whole dataset, streamed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import check_bool, whole_number
from paceline.air.errors import ConfigError
from paceline.train.prediction.arguments import (
    check_keywords,
    check_predict_keywords,
    column_names,
    gpu_keywords,
    keywords_of,
    only_needed_columns,
    processes_wanted,
    the_predictor_class,
    warn_without_effect,
)
from paceline.train.predictor import checked_checkpoint, checked_preprocessor

if TYPE_CHECKING:
    import pandas as pd

    from paceline.data.dataset import Dataset
    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import Predictor

__all__ = ["BatchPredictor"]


class BatchPredictor:
    """A checkpoint and the predictor class that knows what to do with it.

    The predictor is made where and when rows are predicted, once per process, by
    ``predictor_cls.from_checkpoint(checkpoint, **predictor_kwargs)``.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | str | os.PathLike[str],
        predictor_cls: type[Predictor] | None = None,
        **predictor_kwargs: Any,
    ) -> None:
        """`checkpoint` may be its path or URI. Without `predictor_cls`, the one that belongs to the checkpoint."""
        self._checkpoint = checked_checkpoint(checkpoint, "BatchPredictor")
        self._predictor_cls = the_predictor_class(predictor_cls, self._checkpoint)
        self._predictor_kwargs = predictor_kwargs
        self._own_preprocessor: tuple[Preprocessor | None] | None = None
        name = f"{self._predictor_cls.__name__}.from_checkpoint"
        check_keywords(name, predictor_kwargs, self._predictor_cls.from_checkpoint)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint | str | os.PathLike[str],
        predictor_cls: type[Predictor] | None = None,
        **kwargs: Any,
    ) -> BatchPredictor:
        """The same as ``BatchPredictor(checkpoint, predictor_cls, **kwargs)``."""
        return cls(checkpoint, predictor_cls, **kwargs)

    @classmethod
    def from_pandas_udf(cls, pandas_udf: Callable[[pd.DataFrame], pd.DataFrame]) -> BatchPredictor:
        """One that calls a function: it takes a DataFrame and returns one with as many rows."""
        from paceline.train.predictor import PandasFunctionPredictor

        PandasFunctionPredictor(pandas_udf)  # refused here if it is no function
        return cls(Checkpoint.from_dict({}), PandasFunctionPredictor, pandas_udf=pandas_udf)

    def __repr__(self) -> str:
        return f"BatchPredictor({self._checkpoint!r}, {self._predictor_cls.__name__})"

    def get_preprocessor(self) -> Preprocessor | None:
        """What rows go through before the model: the one that was set, else the checkpoint's."""
        if self._own_preprocessor is not None:
            return self._own_preprocessor[0]
        stored: Preprocessor | None = self._checkpoint.get_preprocessor()
        return stored

    def set_preprocessor(self, preprocessor: Preprocessor | None) -> None:
        """Use this one instead of the checkpoint's, for datasets made from now on; None: none at all."""
        self._own_preprocessor = (checked_preprocessor(preprocessor),)

    def predict(
        self,
        data: Dataset,
        *,
        feature_columns: Sequence[str] | None = None,
        keep_columns: Sequence[str] | None = None,
        batch_size: int | Literal["default"] = "default",
        min_scoring_workers: int = 1,
        max_scoring_workers: int | None = None,
        num_cpus_per_worker: float | None = None,
        num_gpus_per_worker: float | None = None,
        separate_gpu_stage: bool = True,
        ray_remote_args: Mapping[str, Any] | None = None,
        **predict_kwargs: Any,
    ) -> Dataset:
        """A dataset of the predictions for every row of `data`, in the same order.

        Nothing is read or predicted before the result is used. Then rows stream: ``.write_parquet(directory)``
        needs memory for a few batches, however many rows there are.

        - `feature_columns`: columns for the model, of what comes out of the preprocessor, or else of what goes
          into it; all by default.
        - `keep_columns`: columns that are put beside the predictions of the same rows, as the preprocessor leaves them;
          those that it removes, as they are in `data`.
        - `batch_size`: at most this many rows are predicted at once. By default what suits the predictor: 4096 unless
          its class says otherwise.
        - `min_scoring_workers`, `max_scoring_workers`: from how many to how many processes predict. With the default,
          one, it is done in the process that reads, which is quickest for models that use all cores by themselves
          (XGBoost, LightGBM, PyTorch). More are for models that use a single core.
        - `num_gpus_per_worker`: above 0, the model is put on the GPU.
        - `predict_kwargs` go to the predictor's `predict`.
        """
        from paceline.data.dataset import Dataset
        from paceline.train.prediction.scoring import Scoring, ScoringTask

        if not isinstance(data, Dataset):
            raise ConfigError(
                f"BatchPredictor.predict takes a Dataset, not {type(data).__name__}: paceline.data.read_parquet, "
                "from_pandas and others make one. A single batch is predicted by "
                f"{self._predictor_cls.__name__}.from_checkpoint(checkpoint).predict(batch)."
            )
        features = column_names("feature_columns", feature_columns)
        keep = column_names("keep_columns", keep_columns) or ()
        own_arguments, _ = keywords_of(self.predict)
        check_predict_keywords(self._predictor_cls, predict_kwargs, own_arguments)
        if batch_size == "default":
            batch_size = self._predictor_cls.default_batch_size
        batch_size = whole_number(batch_size, "batch_size", least=1)
        processes = processes_wanted(min_scoring_workers, max_scoring_workers)
        check_bool(separate_gpu_stage, "separate_gpu_stage")
        warn_without_effect(num_cpus_per_worker, ray_remote_args)
        task = ScoringTask(
            checkpoint=self._checkpoint,
            predictor_cls=self._predictor_cls,
            predictor_kwargs={
                **gpu_keywords(num_gpus_per_worker, processes, self._predictor_cls),
                **self._predictor_kwargs,
            },
            predict_kwargs=predict_kwargs,
            own_preprocessor=self._own_preprocessor,
            feature_columns=features,
            keep_columns=keep,
        )
        rows = only_needed_columns(data, self.get_preprocessor(), features, keep)
        return rows._then(Scoring(task, batch_size, processes))

    def predict_pipelined(
        self,
        data: Dataset,
        *,
        blocks_per_window: int | None = None,
        bytes_per_window: int | None = None,
        **settings: Any,
    ) -> Dataset:
        """The same as `predict`, with its arguments: datasets stream by themselves, and need no windows for it."""
        return self.predict(data, **settings)
