"""LightGBMPredictor: predicts with a booster from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from paceline.air.errors import ConfigError, DataError
from paceline.train.lightgbm.checkpoint import LightGBMCheckpoint
from paceline.train.lightgbm.features import Features, describe_features
from paceline.train.predictor import Predictor, prediction_columns

if TYPE_CHECKING:
    import lightgbm as lgb
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray

    from paceline.air.checkpoint import Checkpoint
    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import Arrays

_WHERE = "The data to predict"


class LightGBMPredictor(Predictor):
    """Predicts with a LightGBM model.

    Columns are found by name: those that the model was trained on, in whichever order they come and whatever else is
    there. Categories are numbered as in training. `predict` takes `feature_columns=` to name other columns, and what
    `Booster.predict` takes: `raw_score`, `pred_leaf`, `pred_contrib`, `num_iteration`, ...
    """

    default_batch_size = 65_536  # small batches cost a third more per row

    def __init__(
        self, model: lgb.Booster, preprocessor: Preprocessor | None = None, *, features: Features | None = None
    ) -> None:
        super().__init__(preprocessor)
        self.model = model
        self._features = features

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Self:
        """The predictor with the model of a LightGBMCheckpoint."""
        own = LightGBMCheckpoint.from_checkpoint(checkpoint)
        return cls(own.get_model(), own.get_preprocessor(), features=own.details().features)

    def _predict_arrow(
        self, data: pa.Table, feature_columns: Sequence[str] | None = None, **predict_kwargs: Any
    ) -> pa.Table:
        import pyarrow as pa

        if feature_columns is not None:
            data = _chosen(data, feature_columns)
        features = self._features_of(data)
        return pa.table(self._predict(features.matrix(data, _WHERE), predict_kwargs))

    def _predict_pandas(
        self, data: pd.DataFrame, feature_columns: Sequence[str] | None = None, **predict_kwargs: Any
    ) -> pd.DataFrame:
        import pandas as pd
        import pyarrow as pa

        if self.model.pandas_categorical:  # trained on a frame: the model itself knows its categories
            frame = data[self.model.feature_name() if feature_columns is None else list(feature_columns)]
            return pd.DataFrame(self._predict(frame, predict_kwargs), index=data.index)
        table = pa.Table.from_pandas(data, preserve_index=False)
        answer: pd.DataFrame = self._predict_arrow(table, feature_columns, **predict_kwargs).to_pandas()
        return answer.set_axis(data.index)

    def _predict_numpy(
        self, data: Arrays, feature_columns: Sequence[str] | None = None, **predict_kwargs: Any
    ) -> Arrays:
        import numpy as np

        from paceline.data.formats import from_batch

        if not isinstance(data, np.ndarray):
            from paceline.train.prediction.kinds import as_table

            table = as_table(from_batch(data, _WHERE))
            answer = self._predict_arrow(table, feature_columns, **predict_kwargs)
            return {name: answer.column(name).to_numpy() for name in answer.column_names}
        if feature_columns is not None:
            raise ConfigError("feature_columns are names, which an array has not: give a dict of arrays by column.")
        if self._features is not None and self._features.categories:
            raise ConfigError(
                f"The model has categories ({', '.join(self._features.categories)}): give the columns by name, in a "
                "dict, a DataFrame or an Arrow table."
            )
        return self._predict(data.reshape(len(data), -1), predict_kwargs)

    def _predict(self, rows: Any, predict_kwargs: dict[str, Any]) -> dict[str, NDArray[np.generic]]:
        """LightGBM cannot predict nothing; what columns that would have is learnt from a row."""
        import numpy as np

        if len(rows):
            return prediction_columns(np.asarray(self.model.predict(rows, **predict_kwargs)))
        one = np.asarray(self.model.predict(np.full((1, self.model.num_feature()), np.nan), **predict_kwargs))
        return prediction_columns(one[:0])

    def _features_of(self, table: pa.Table) -> Features:
        """Those of the training, else those whose names the model has, else all columns as they come."""
        if self._features is not None and set(self._features.columns) <= set(table.schema.names):
            return self._features
        names = self.model.feature_name()
        if set(names) <= set(table.schema.names):
            return describe_features(table.select(names), (), _WHERE)
        features = describe_features(table, (), _WHERE)
        if len(features.names) != len(names):
            raise DataError(
                f"{_WHERE} has {len(features.names)} features ({', '.join(features.names)}), the model was trained on "
                f"{len(names)}: {', '.join(names)}."
            )
        return features


def _chosen(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    missing = [column for column in columns if column not in table.schema.names]
    if missing:
        raise DataError(f"feature_columns: {_WHERE.lower()} has no column {missing[0]!r}.")
    return table.select(list(columns))
