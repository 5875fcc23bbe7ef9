"""Another path to the workers that a backend prepares."""

from paceline.engine.base import WorkerGroup

__all__ = ["WorkerGroup"]
