"""Old path of Callback."""

from paceline.air.absent import advise
from paceline.run.callbacks import Callback

__all__ = ["Callback"]

advise(__name__, {"CallbackList": "the run calls the callbacks of RunConfig(callbacks=[...]) itself"})
