"""Old path of what XGBoostTrainer and LightGBMTrainer have in common."""

from paceline.train.trees.trainer import TreeTrainer as GBDTTrainer

__all__ = ["GBDTTrainer"]
