"""PyTorch: TorchTrainer, what its train functions use, and prediction."""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ImportError("paceline.train.torch needs PyTorch: pip install 'paceline[torch]'", name="torch")

from paceline.train.torch.backend import TorchConfig
from paceline.train.torch.checkpoint import TorchCheckpoint
from paceline.train.torch.devices import get_device, get_devices
from paceline.train.torch.loop import (
    TorchWorkerProfiler,
    accelerate,
    backward,
    enable_reproducibility,
    prepare_data_loader,
    prepare_model,
    prepare_optimizer,
)
from paceline.train.torch.memory import MemoryEstimate, RankMemory, estimate_memory
from paceline.train.torch.predictor import TorchDetectionPredictor, TorchPredictor
from paceline.train.torch.sharded import load_sharded, save_sharded
from paceline.train.torch.trainer import TorchTrainer

__all__ = [
    "MemoryEstimate",
    "RankMemory",
    "TorchCheckpoint",
    "TorchConfig",
    "TorchDetectionPredictor",
    "TorchPredictor",
    "TorchTrainer",
    "TorchWorkerProfiler",
    "accelerate",
    "backward",
    "enable_reproducibility",
    "estimate_memory",
    "get_device",
    "get_devices",
    "load_sharded",
    "prepare_data_loader",
    "prepare_model",
    "prepare_optimizer",
    "save_sharded",
]
