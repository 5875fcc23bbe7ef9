"""Reinforcement learning: RLTrainer trains with RLlib; its checkpoints hold policies, which RLPredictor uses."""

from importlib.util import find_spec

from paceline.air.ray_alias import INSTEAD, alias_in_force

if alias_in_force():
    raise ImportError(f"paceline.train.rl needs the real Ray, and {INSTEAD}", name="ray")
if not all(find_spec(name) for name in ("ray", "gymnasium", "torch")):
    raise ImportError("paceline.train.rl needs RLlib and PyTorch: pip install 'paceline[rllib]'", name="ray")

from paceline.train.rl.checkpoint import RLCheckpoint
from paceline.train.rl.predictor import RLPredictor
from paceline.train.rl.trainer import RLTrainer

__all__ = ["RLCheckpoint", "RLPredictor", "RLTrainer"]
