"""Lightning has two names: `lightning.pytorch`, and `pytorch_lightning` as it was called before.

Both are usually installed, with the same code but classes of their own: a Trainer of the one takes no strategy of the
other. So what is derived from a class of Lightning's exists twice, and the package that the user's code has loaded
decides.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

LIGHTNING = "lightning.pytorch"
PYTORCH_LIGHTNING = "pytorch_lightning"

_DERIVED = {
    LIGHTNING: "paceline.train.lightning.for_lightning",
    PYTORCH_LIGHTNING: "paceline.train.lightning.for_pytorch_lightning",
}


def package_of(kind: type) -> str | None:
    """The package that a class is, or is derived from, a class of; None if of neither."""
    for base in kind.__mro__:
        for package in _DERIVED:
            if base.__module__ == package or base.__module__.startswith(f"{package}."):
                return package
    return None


def package_in_use() -> str:
    """The package that is loaded; `lightning` if both are, or none is and it is installed."""
    if LIGHTNING in sys.modules:
        return LIGHTNING
    if PYTORCH_LIGHTNING in sys.modules or find_spec("lightning") is None:
        return PYTORCH_LIGHTNING
    return LIGHTNING


def derived_classes(package: str) -> ModuleType:
    """The module with the classes of ours that are derived from those of `package`."""
    return importlib.import_module(_DERIVED[package])


def lightning(package: str) -> Any:
    """The package itself."""
    return importlib.import_module(package)
