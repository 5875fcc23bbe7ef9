"""scikit-learn: SklearnTrainer, its checkpoints, and prediction from them."""

from importlib.util import find_spec

if not all(find_spec(name) for name in ("sklearn", "skops", "joblib")):
    raise ImportError(
        "paceline.train.sklearn needs scikit-learn, skops and joblib: pip install 'paceline[sklearn]'", name="sklearn"
    )

from paceline.train.sklearn.checkpoint import SklearnCheckpoint
from paceline.train.sklearn.predictor import SklearnPredictor
from paceline.train.sklearn.trainer import SklearnTrainer

__all__ = ["SklearnCheckpoint", "SklearnPredictor", "SklearnTrainer"]
