"""Old path of Callback."""

from paceline.run.callbacks import Callback

__all__ = ["Callback"]
