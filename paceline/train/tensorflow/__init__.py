"""TensorFlow: TensorflowTrainer, and what its train functions, checkpoints and predictions use."""

from importlib.util import find_spec

if find_spec("tensorflow") is None:
    raise ImportError(
        "paceline.train.tensorflow needs TensorFlow: pip install 'paceline[tensorflow]', or 'tensorflow[and-cuda]' for "
        "GPUs",
        name="tensorflow",
    )

from paceline.train.tensorflow.backend import TensorflowConfig
from paceline.train.tensorflow.callback import ReportCheckpointCallback as ReportCallback
from paceline.train.tensorflow.checkpoint import TensorflowCheckpoint
from paceline.train.tensorflow.predictor import TensorflowPredictor
from paceline.train.tensorflow.trainer import TensorflowTrainer, prepare_dataset_shard

RayTrainReportCallback = ReportCallback

__all__ = [
    "RayTrainReportCallback",
    "ReportCallback",
    "TensorflowCheckpoint",
    "TensorflowConfig",
    "TensorflowPredictor",
    "TensorflowTrainer",
    "prepare_dataset_shard",
]
