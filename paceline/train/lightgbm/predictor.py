"""LightGBMPredictor: predicts with a booster from a checkpoint."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from paceline.air.errors import ConfigError, DataError
from paceline.train.lightgbm.checkpoint import LightGBMCheckpoint
from paceline.train.predictor import Predictor, array_or_columns, checked_checkpoint, chosen_columns, prediction_columns

if TYPE_CHECKING:
    import lightgbm as lgb
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray

    from paceline.data.preprocessor import Preprocessor
    from paceline.train.lightgbm.features import Features
    from paceline.train.predictor import Arrays, CheckpointOrPlace

_WHERE = "The data to predict"
_PARAMETERS = frozenset(
    ["num_threads", "pred_early_stop", "pred_early_stop_freq", "pred_early_stop_margin", "predict_disable_shape_check"]
)
"""Those of LightGBM that have an effect in prediction. It takes all others as well, and does nothing with them."""


class LightGBMPredictor(Predictor):
    """Predicts with a LightGBM model.

    Columns are found by name: those that the model was trained on, in whichever order they come and whatever else is
    there. Categories are numbered as in training. `predict` takes `feature_columns=` to name other columns, and what
    `Booster.predict` takes: `raw_score`, `pred_leaf`, `pred_contrib`, `num_iteration`, ...
    """

    _shown = ("model",)
    default_batch_size = 65_536  # small batches cost a third more per row

    def __init__(
        self, model: lgb.Booster, preprocessor: Preprocessor | None = None, *, features: Features | None = None
    ) -> None:
        super().__init__(preprocessor)
        self.model = model
        self._features = features

    @classmethod
    def from_checkpoint(cls, checkpoint: CheckpointOrPlace) -> Self:
        """The predictor with the model of a LightGBMCheckpoint, which may be its path or URI."""
        checkpoint = checked_checkpoint(checkpoint, f"{cls.__name__}.from_checkpoint")
        own = LightGBMCheckpoint.from_checkpoint(checkpoint)
        return cls(own.get_model(), own.get_preprocessor(), features=own.details().features)

    @classmethod
    @functools.cache
    def _model_keywords(cls) -> frozenset[str]:
        import lightgbm as lgb

        parameters = inspect.signature(lgb.Booster.predict).parameters
        return _PARAMETERS.union(parameters).difference(["self", "data", "data_has_header", "kwargs"])

    def _predict_arrow(
        self, data: pa.Table, feature_columns: Sequence[str] | Sequence[int] | None = None, **predict_kwargs: Any
    ) -> pa.Table:
        import pyarrow as pa

        from paceline.train.lightgbm.features import Features, spread_vectors

        rows: Any
        if self._features is not None:
            rows = self._features.matrix(self._named(data, self._features.columns, feature_columns), _WHERE)
        else:
            names = self.model.feature_name()
            table = self._named(spread_vectors(data, _WHERE), names, feature_columns)
            plain = Features(tuple(names), {}, {})
            rows = self._frame(table) if self.model.pandas_categorical else plain.matrix(table, _WHERE)
        return pa.table(self._predict(rows, predict_kwargs))

    def _predict_numpy(
        self, data: Arrays, feature_columns: Sequence[str] | Sequence[int] | None = None, **predict_kwargs: Any
    ) -> Arrays:
        import numpy as np

        from paceline.data.formats import from_batch

        if not isinstance(data, np.ndarray):
            from paceline.train.prediction.kinds import as_table, with_text_names

            table = as_table(from_batch(with_text_names(data), _WHERE))
            answer = self._predict_arrow(table, feature_columns, **predict_kwargs)
            return array_or_columns({name: answer.column(name).to_numpy() for name in answer.column_names})
        if self._features is not None and self._features.categories:
            raise ConfigError(
                f"The model has categories ({', '.join(self._features.categories)}): give the columns by name, in a "
                "dict, a DataFrame or an Arrow table."
            )
        rows = data.reshape(len(data), math.prod(data.shape[1:]))
        if feature_columns is not None:
            columns: Any = feature_columns
            rows = rows[:, list(columns)]
        if rows.shape[1] != self.model.num_feature():
            raise DataError(
                f"{_WHERE} has {rows.shape[1]} columns; the model was trained on {self.model.num_feature()} features."
            )
        return array_or_columns(self._predict(rows, predict_kwargs))

    def _predict(self, rows: Any, predict_kwargs: dict[str, Any]) -> dict[str, NDArray[np.generic]]:
        """LightGBM cannot predict nothing; what columns that would have is learnt from a row."""
        import numpy as np

        if len(rows):
            return prediction_columns(np.asarray(self.model.predict(rows, **predict_kwargs)))
        one = np.asarray(self.model.predict(np.full((1, self.model.num_feature()), np.nan), **predict_kwargs))
        return prediction_columns(one[:0])

    @cached_property
    def _categorical(self) -> set[str]:
        """Features that the trees take as categories: a column without any value does not show what it is."""
        described = self.model.dump_model(num_iteration=1)["feature_infos"]
        return {name for name, feature in described.items() if feature["values"]}

    def _named(
        self, table: pa.Table, wanted: Sequence[str], feature_columns: Sequence[str] | Sequence[int] | None
    ) -> pa.Table:
        """The columns under the names by which the model knows them. Those that are not found are told later.

        By position are taken only columns that were chosen, and those of a model that was trained without names.
        """
        if feature_columns is not None:
            table = table.select(chosen_columns(map(str, feature_columns), table.schema.names))
        there = {name.replace(" ", "_"): name for name in table.schema.names}  # so LightGBM writes names
        there |= {name: name for name in table.schema.names}
        if all(name in there for name in wanted):
            return table.select([there[name] for name in wanted]).rename_columns(list(wanted))
        nameless = list(wanted) == [f"Column_{index}" for index in range(len(wanted))]
        if (nameless or feature_columns is not None) and table.num_columns == len(wanted):
            return table.rename_columns(list(wanted))
        return table

    def _frame(self, table: pa.Table) -> pd.DataFrame:
        """For a model that was trained on a frame with categories: LightGBM itself numbers them as it did there."""
        from paceline.data.formats import from_batch, to_batch
        from paceline.train.lightgbm.features import is_category

        missing = [name for name in self.model.feature_name() if name not in table.schema.names]
        if missing:
            raise DataError(f"{_WHERE} has no column {missing[0]!r}, which the model was trained on.")
        categories = [
            name
            for name, column in zip(table.column_names, table.columns, strict=True)
            if is_category(column.type) or (column.null_count == len(column) and name in self._categorical)
        ]
        trained_on = len(self.model.pandas_categorical or ())
        if len(categories) != trained_on:
            raise DataError(
                f"{_WHERE} has {len(categories)} columns of text or categories ({', '.join(categories)}); the model "
                f"was trained on {trained_on}."
            )
        frame: Any = to_batch(from_batch(table, _WHERE), "pandas", copy=True)
        return frame.astype(dict.fromkeys(categories, "category"))  # type: ignore[no-any-return]
