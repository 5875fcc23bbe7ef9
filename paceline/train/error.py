"""Another path to the errors of trainers and sessions."""

from paceline.air.errors import SessionMisuseError, TrainingFailedError

__all__ = ["SessionMisuseError", "TrainingFailedError"]
