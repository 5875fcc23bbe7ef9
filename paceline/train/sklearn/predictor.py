"""SklearnPredictor: prediction with a fitted scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from paceline.air.checks import whole_number
from paceline.air.errors import ConfigError, DataError
from paceline.train.predictor import (
    Predictor,
    array_or_columns,
    check_keywords,
    checked_checkpoint,
    chosen_columns,
    predict_keywords,
    prediction_columns,
)
from paceline.train.sklearn.checkpoint import SklearnCheckpoint
from paceline.train.sklearn.cpus import set_cpus
from paceline.train.sklearn.features import like_training, spread_vectors

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import Arrays, CheckpointOrPlace
    from paceline.train.sklearn.checkpoint import Trust

Method = Literal["predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples", "transform"]
METHODS: tuple[str, ...] = get_args(Method)


class SklearnPredictor(Predictor):
    """Predicts with a scikit-learn estimator.

    `predict(data, feature_columns=None, num_estimator_cpus=None, method="predict", **kwargs)`:

    - An estimator that was fitted with named columns takes those, in its order; other columns are left alone.
      `feature_columns` names the columns to use otherwise (for a bare array: their numbers).
    - `num_estimator_cpus` sets `n_jobs` of the estimator and its parts.
    - `method` is what to call: predict, predict_proba, decision_function, transform, ... `kwargs` are for it.

    Several values per row (probabilities, several outputs) become "predictions_0", "predictions_1", ...
    """

    _shown = ("estimator",)

    def __init__(self, estimator: Any, preprocessor: Preprocessor | None = None) -> None:
        if isinstance(estimator, type) or not any(hasattr(estimator, method) for method in METHODS):
            raise ConfigError(f"SklearnPredictor takes a fitted scikit-learn estimator, not {estimator!r}.")
        super().__init__(preprocessor)
        self.estimator = estimator

    @classmethod
    def from_checkpoint(cls, checkpoint: CheckpointOrPlace, trust: Trust = None) -> Self:
        """With the estimator and the preprocessor of a checkpoint, which may be its path or URI.

        For `trust` see SklearnCheckpoint.get_estimator.
        """
        checkpoint = checked_checkpoint(checkpoint, f"{cls.__name__}.from_checkpoint")
        if not isinstance(checkpoint, SklearnCheckpoint):
            checkpoint = SklearnCheckpoint.from_checkpoint(checkpoint)
        return cls(checkpoint.get_estimator(trust), checkpoint.get_preprocessor())

    def _check_model_keywords(self, given: Mapping[str, Any]) -> None:
        super()._check_model_keywords(given)
        own, _ = predict_keywords(type(self))
        method = given.get("method", "predict")
        self._check_method(method)
        for_it = {name: value for name, value in given.items() if name not in own}
        check_keywords(f"{type(self.estimator).__name__}.{method}()", for_it, getattr(self.estimator, method))

    def _predict_pandas(
        self,
        data: pd.DataFrame,
        feature_columns: Sequence[Any] | None = None,
        num_estimator_cpus: int | None = None,
        method: Method = "predict",
        **kwargs: Any,
    ) -> pd.DataFrame:
        import pandas as pd

        chosen = data if feature_columns is None else data[chosen_columns(feature_columns, data.columns)]
        features = spread_vectors(chosen)
        names = getattr(self.estimator, "feature_names_in_", None)
        if names is not None:
            features = like_training(features, list(names), "The data")
        found = self._called(features, num_estimator_cpus, method, kwargs)
        return pd.DataFrame(prediction_columns(found), index=data.index)

    def _predict_numpy(
        self,
        data: Arrays,
        feature_columns: Sequence[Any] | None = None,
        num_estimator_cpus: int | None = None,
        method: Method = "predict",
        **kwargs: Any,
    ) -> Arrays:
        import pandas as pd

        if isinstance(data, dict):
            frame = pd.DataFrame({name: list(each) if each.ndim > 1 else each for name, each in data.items()})
            answer = self._predict_pandas(frame, feature_columns, num_estimator_cpus, method, **kwargs)
            return array_or_columns({str(name): answer[name].to_numpy() for name in answer.columns})
        matrix = data if feature_columns is None else data[:, list(feature_columns)]
        names = getattr(self.estimator, "feature_names_in_", None)
        if names is None:
            return array_or_columns(prediction_columns(self._called(matrix, num_estimator_cpus, method, kwargs)))
        if matrix.ndim != 2 or matrix.shape[1] != len(names):
            raise DataError(
                f"The array has the shape {matrix.shape}, but the estimator was fitted with {len(names)} columns: "
                f"{', '.join(names)}. Give rows x columns, in this order."
            )
        named = pd.DataFrame(matrix, columns=names)
        return array_or_columns(prediction_columns(self._called(named, num_estimator_cpus, method, kwargs)))

    def _called(self, features: Any, cpus: int | None, method: Method, kwargs: dict[str, Any]) -> NDArray[np.generic]:
        from sklearn.exceptions import NotFittedError

        self._check_method(method)
        if kwargs:
            check_keywords(f"{type(self.estimator).__name__}.{method}()", kwargs, getattr(self.estimator, method))
        if not len(features):
            return self._nothing(features, cpus, method, kwargs)
        if cpus is not None:
            set_cpus(self.estimator, whole_number(cpus, "num_estimator_cpus", least=1))
        what = f"{type(self.estimator).__name__}.{method}()"
        try:
            found = _one_array(getattr(self.estimator, method)(features, **kwargs))
        except NotFittedError:
            raise
        except (TypeError, ValueError) as error:
            if (otherwise := _nulls_as_objects(features)) is not None:
                return self._called(otherwise, cpus, method, kwargs)
            if isinstance(error, TypeError):
                raise
            raise DataError(f"{what} refuses these rows: {error}{_columns_of_text(features, error)}") from error
        if found.shape[:1] != (len(features),):
            raise DataError(
                f"{what} answered {len(features)} rows with values of shape {found.shape}. Does it take bare text, as "
                "CountVectorizer does? Then give an array of texts, or put it into a ColumnTransformer that names the "
                "column."
            )
        return found

    def _check_method(self, method: str) -> None:
        if method not in METHODS or not hasattr(self.estimator, method):
            there = [each for each in METHODS if hasattr(self.estimator, each)]
            raise ConfigError(f"{type(self.estimator).__name__} has no {method}(): method= is one of {there}.")

    def _nothing(self, features: Any, cpus: int | None, method: Method, kwargs: dict[str, Any]) -> NDArray[np.generic]:
        """Estimators cannot predict nothing; what that would look like is learnt from a row of zeros.

        Where there is text, zeros are no values: then the classes tell as much as can be known.
        """
        import numpy as np
        from sklearn.exceptions import NotFittedError

        rows = np.zeros((1, *features.shape[1:]))
        try:
            return self._called(_like(features, rows), cpus, method, kwargs)[:0]
        except NotFittedError:
            raise
        except Exception:
            classes = getattr(self.estimator, "classes_", None)
            if classes is None or method == "transform":
                return np.zeros(0)
            return np.zeros(0, classes.dtype) if method == "predict" else np.zeros((0, len(classes)))


def _like(features: Any, rows: NDArray[Any]) -> Any:
    """Rows as an array, or as a frame with the columns of `features`."""
    return type(features)(rows, columns=features.columns) if hasattr(features, "columns") else rows


def _columns_of_text(features: Any, error: Exception) -> str:
    """Which columns scikit-learn means when it could not make a number of a text."""
    if "could not convert string" not in str(error) or not hasattr(features, "columns"):
        return ""
    columns = [repr(name) for name in features.columns if features[name].dtype.kind not in "biufc"]
    return f" (columns that are no numbers: {', '.join(columns)})"


def _nulls_as_objects(features: Any) -> Any:
    """Columns that have no value at all came as numbers, for want of a better guess; encoders of text refuse those."""
    columns = getattr(features, "columns", ())
    empty = [name for name in columns if features[name].dtype.kind == "f" and features[name].isna().all()]
    return features.astype(dict.fromkeys(empty, object)) if empty else None


def _one_array(answer: Any) -> NDArray[np.generic]:
    """Rows x values: sparse matrices are filled up, and several arrays (one per output) put side by side."""
    import numpy as np

    if isinstance(answer, tuple | list):
        parts = [_one_array(each) for each in answer]
        return np.hstack([part.reshape(len(part), -1) for part in parts])
    return np.asarray(answer.toarray() if hasattr(answer, "toarray") else answer)
