"""XGBoostPredictor: predictions of a booster."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from paceline.air.errors import ConfigError, DataError
from paceline.air.words import counted
from paceline.train.predictor import (
    Predictor,
    array_or_columns,
    checked_checkpoint,
    chosen_columns,
    listed,
    prediction_columns,
)
from paceline.train.xgboost.checkpoint import XGBoostCheckpoint

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import xgboost
    from numpy.typing import NDArray

    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import Arrays, CheckpointOrPlace

_IN_PLACE = frozenset(["output_margin", "iteration_range", "base_margin", "strict_shape", "validate_features"])
"""What XGBoost can do without a matrix, which would be a copy of the data."""
_WHERE = "the data to predict"


class XGBoostPredictor(Predictor):
    """Predicts with a booster, by the columns that it was trained on.

    Columns are found by name, in any order; those that the model does not know are left alone. A bare array has
    the features in the order of training. One value per row is the column "predictions", several are
    "predictions_0", "predictions_1", ...
    """

    default_batch_size = 65_536  # a call by itself costs about as much as 2,000 rows

    def __init__(self, model: xgboost.Booster, preprocessor: Preprocessor | None = None) -> None:
        import xgboost

        from paceline.train.xgboost.features import categories_in

        if isinstance(model, xgboost.XGBModel):
            model = model.get_booster()
        if not isinstance(model, xgboost.Booster):
            raise ConfigError(f"XGBoostPredictor takes an xgboost.Booster, not {type(model).__name__}.")
        super().__init__(preprocessor)
        self.model = model
        self._features = model.feature_names
        self._categories = categories_in(model)

    @classmethod
    def from_checkpoint(cls, checkpoint: CheckpointOrPlace) -> Self:
        """The predictor with the booster and the preprocessor of a checkpoint, which may be its path or URI."""
        checkpoint = checked_checkpoint(checkpoint, f"{cls.__name__}.from_checkpoint")
        model = XGBoostCheckpoint.from_checkpoint(checkpoint).get_model()
        return cls(model, checkpoint.get_preprocessor())

    @classmethod
    @functools.cache
    def _model_keywords(cls) -> frozenset[str]:
        import xgboost

        parameters = inspect.signature(xgboost.Booster.predict).parameters
        return _IN_PLACE.union(parameters).difference(["self", "data"])

    def __repr__(self) -> str:
        features, rounds = len(self._features or []), self.model.num_boosted_rounds()
        return f"XGBoostPredictor({counted(features, 'feature')}, {counted(rounds, 'round')})"

    def _predict_arrow(
        self,
        data: pa.Table,
        feature_columns: Sequence[str] | Sequence[int] | None = None,
        dmatrix_kwargs: Mapping[str, Any] | None = None,
        **predict_kwargs: Any,
    ) -> pa.Table:
        import pyarrow as pa

        from paceline.data.tensors import tensor_array

        columns = self._columns(data, feature_columns, dmatrix_kwargs, predict_kwargs)
        return pa.table({name: each if each.ndim == 1 else tensor_array(each) for name, each in columns.items()})

    def _predict_numpy(
        self,
        data: Arrays,
        feature_columns: Sequence[str] | Sequence[int] | None = None,
        dmatrix_kwargs: Mapping[str, Any] | None = None,
        **predict_kwargs: Any,
    ) -> Arrays:
        import numpy as np
        import pyarrow as pa

        from paceline.data.formats import from_batch
        from paceline.train.prediction.kinds import with_text_names

        columns: Any = feature_columns
        if not isinstance(data, np.ndarray):
            table = pa.Table.from_batches([from_batch(with_text_names(data), "The data to predict")])
            return array_or_columns(self._columns(table, columns, dmatrix_kwargs, predict_kwargs))
        values = data if data.ndim == 2 else data.reshape(len(data), -1)
        chosen = values if columns is None else values[:, list(columns)]
        return array_or_columns(prediction_columns(self._predicted(chosen, dmatrix_kwargs, predict_kwargs)))

    def _columns(
        self,
        data: pa.Table,
        feature_columns: Sequence[str] | Sequence[int] | None,
        dmatrix_kwargs: Mapping[str, Any] | None,
        predict_kwargs: dict[str, Any],
    ) -> dict[str, NDArray[np.generic]]:
        """By column; what has further dimensions, such as contributions to each class, is one column of arrays."""
        if feature_columns is not None:
            names = [feature_columns] if isinstance(feature_columns, str) else map(str, feature_columns)
            data = data.select(chosen_columns(names, data.column_names))
        values = self._values(self._known_columns(data))
        return prediction_columns(self._predicted(values, dmatrix_kwargs, predict_kwargs))

    # -- columns ------------------------------------------------------------------------------

    def _known_columns(self, data: pa.Table) -> pa.Table:
        """The columns that the model's features come from; what it lacks is told by name."""
        if self._features is None:
            return data
        there = set(data.column_names)
        wanted = [name for name in self._features if name in there]
        missing = [name for name in self._features if name not in there]
        sources = dict.fromkeys(name.rpartition("_")[0] for name in missing)  # columns of vectors: "x_0", "x_1", ...
        vectors = [name for name in sources if name in there and name not in wanted]
        missing = [name for name in missing if name.rpartition("_")[0] not in vectors]
        if missing:
            raise DataError(
                f"The data lacks {len(missing)} of the model's {len(self._features)} features: {listed(missing)}. "
                f"It has the columns {listed(data.column_names)}."
            )
        return data.select([*wanted, *vectors])

    def _values(self, data: pa.Table) -> NDArray[np.generic]:
        """Rows x features, in the order of training, categories as the numbers that they had there.

        XGBoost predicts such an array faster than columns, and of columns it would take unknown categories as they
        come.
        """
        import numpy as np

        from paceline.train.xgboost.features import feature_table, is_plain

        if self._categories or not all(is_plain(data_type) for data_type in data.schema.types):
            data = feature_table(self._with_codes(data), _WHERE, {})
        columns = data.columns if self._features is None else [data.column(name) for name in self._features]
        values = np.empty((data.num_rows, len(columns)), dtype=np.float32)
        for index, column in enumerate(columns):
            values[:, index] = column.to_numpy()
        return values

    def _with_codes(self, data: pa.Table) -> dict[str, pa.ChunkedArray]:
        import pyarrow as pa

        from paceline.data.column_arrays import contiguous
        from paceline.train.xgboost.features import codes_of

        columns = dict(zip(data.column_names, data.columns, strict=True))
        for name, categories in self._categories.items():
            columns[name] = pa.chunked_array([codes_of(contiguous(columns[name]), categories, name, _WHERE)])
        return columns

    # -- predicting ---------------------------------------------------------------------------

    def _predicted(
        self, values: NDArray[np.generic], dmatrix_kwargs: Mapping[str, Any] | None, predict_kwargs: dict[str, Any]
    ) -> NDArray[np.generic]:
        import xgboost

        if values.shape[1] != self.model.num_features():
            raise DataError(
                f"The data has {values.shape[1]} columns, and the model {self.model.num_features()} features"
                f"{': ' + listed(self._features) if self._features else ''}."
            )
        if not dmatrix_kwargs and _IN_PLACE.issuperset(predict_kwargs):
            kind = "margin" if predict_kwargs.pop("output_margin", False) else "value"
            return self.model.inplace_predict(
                values, predict_type=kind, **{**predict_kwargs, "validate_features": False}
            )
        given = {"feature_names": self._features, "feature_types": self.model.feature_types, **(dmatrix_kwargs or {})}
        return self.model.predict(xgboost.DMatrix(values, enable_categorical=True, **given), **predict_kwargs)
