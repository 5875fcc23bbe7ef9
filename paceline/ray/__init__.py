"""Programs written for Ray Train, Tune and AIR, unchanged: this module is what their `import ray` gives.

python -m paceline.ray script.py     # or: python -m paceline.ray -m module
%load_ext paceline.ray               # in IPython and Jupyter, before the first `import ray`
paceline.ray.install()               # anywhere else, before the first `import ray`
"""

from __future__ import annotations

from typing import Any

from paceline.compat.ray_alias import install as install
from paceline.compat.ray_alias import member
from paceline.compat.ray_alias import uninstall as uninstall

__version__ = "2.7.0"
"""For programs that compare versions: the newest API that is complete here. paceline's own is paceline.__version__."""

__all__ = ["air", "data", "init", "is_initialized", "shutdown", "train", "tune"]


def load_ipython_extension(shell: Any) -> None:
    """Called by ``%load_ext paceline.ray``."""
    install()


def unload_ipython_extension(shell: Any) -> None:
    """Called by ``%unload_ext paceline.ray``."""
    uninstall()


def __getattr__(name: str) -> Any:
    return member(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
