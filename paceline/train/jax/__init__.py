"""JAX: JaxTrainer, and what its train functions, checkpoints and predictions use."""

from importlib.util import find_spec

if find_spec("jax") is None:
    raise ImportError(
        "paceline.train.jax needs JAX: pip install 'paceline[jax]', and 'jax[cuda13]' or 'jax[tpu]' for GPUs or TPUs",
        name="jax",
    )

from paceline.train.jax.backend import JaxConfig
from paceline.train.jax.checkpoint import JaxCheckpoint
from paceline.train.jax.predictor import JaxPredictor
from paceline.train.jax.trainer import JaxTrainer

__all__ = ["JaxCheckpoint", "JaxConfig", "JaxPredictor", "JaxTrainer"]
