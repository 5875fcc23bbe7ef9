"""The versions of Python, paceline and the frameworks that a run was started with."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping

from paceline.air.version import version

FRAMEWORKS = (
    *("torch", "tensorflow", "xgboost", "lightgbm", "sklearn", "transformers", "accelerate", "horovod"),
    *("lightning", "pytorch_lightning", "ray", "jax", "flax", "optax"),
)
"""Modules whose version matters to a training."""
_DISTRIBUTIONS = {"sklearn": "scikit-learn", "pytorch_lightning": "pytorch-lightning"}


def package_versions(modules: Iterable[str]) -> dict[str, str]:
    """Of Python, paceline, and the frameworks among these modules. None of them is imported."""
    found = {"Python": platform.python_version(), "paceline": version()}
    for name in dict.fromkeys(module.partition(".")[0] for module in modules):
        if name in FRAMEWORKS and (text := _version_of(name)):
            found[name] = text
    return found


def _version_of(name: str) -> str:
    loaded = getattr(sys.modules.get(name), "__version__", None)
    if isinstance(loaded, str):
        return loaded
    from importlib import metadata  # only if somebody has installed a framework and not imported it

    try:
        return metadata.version(_DISTRIBUTIONS.get(name, name))
    except metadata.PackageNotFoundError:
        return ""


def changed_versions(earlier: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """``torch 2.1.0 -> 2.2.0`` for each that both know and that differs."""
    return [f"{name} {earlier[name]} -> {now[name]}" for name in now if name in earlier and earlier[name] != now[name]]
