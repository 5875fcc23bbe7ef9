"""For parts that are being rewritten; goes away with them."""

from paceline.tune.experiment.setup import SearchSetup as Plan

__all__ = ["Plan"]
