"""Which of Horovod's frameworks a train function uses, as far as its code tells."""

from __future__ import annotations

from typing import Any

from paceline.train.referred_modules import referred_modules

_TORCH = ("torch", "horovod.torch")
_TENSORFLOW = ("tensorflow", "keras", "tf_keras", "horovod.tensorflow", "horovod.keras")


def uses_only_torch(*values: Any) -> bool:
    """True if the functions and other values refer to PyTorch and not to TensorFlow. A function that hides what it uses
    is not taken for one that does."""
    names = referred_modules(*values)
    return _refers(names, _TORCH) and not _refers(names, _TENSORFLOW)


def _refers(names: set[str], modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in names for module in modules)
