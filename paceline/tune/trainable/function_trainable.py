"""FunctionTrainable: a function trainable as a class, for code that wraps functions itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from paceline.air.absent import advise
from paceline.air.errors import ConfigError
from paceline.tune.trainable.trainable import Trainable

__all__ = ["FunctionTrainable", "wrap_function"]


class FunctionTrainable(Trainable):
    """Stands for a function: a Tuner runs this as it runs the function. See `wrap_function`."""

    function: ClassVar[Callable[..., Any]]

    def step(self) -> dict[str, Any]:
        raise ConfigError(
            f"{type(self).__name__} is a function, which is not run step by step: pass it to tune.Tuner(), or derive "
            "a class from tune.Trainable."
        )


def wrap_function(
    train_func: Callable[..., Any], warn: bool = True, name: str | None = None
) -> type[FunctionTrainable]:
    """A class that stands for the function; `name` is for directories, and `warn` changes nothing.

    Tuner, tune.run() and register_trainable() take the function itself as well.
    """
    from paceline.tune.trainable.parameters import function_name

    members = {"function": staticmethod(train_func), "__doc__": train_func.__doc__}
    return type(name or function_name(train_func), (FunctionTrainable,), members)


def unwrapped(trainable: Any) -> Any:
    """The function that a FunctionTrainable stands for; any other trainable as it is."""
    is_wrapped = isinstance(trainable, type) and issubclass(trainable, FunctionTrainable)
    return trainable.function if is_wrapped else trainable


advise(__name__, {"FuncCheckpointUtil": "session.report(metrics, checkpoint=...) keeps the checkpoints of a function"})
