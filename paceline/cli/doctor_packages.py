"""What ``paceline doctor`` says about Python, the installed frameworks, and the engine that runs would use.

Nothing is imported: versions come from the packages' metadata, and what is required from paceline's own.
"""

from __future__ import annotations

import operator
import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec

import paceline
from paceline.cli.findings import Finding

PACKAGES, ENGINE = "Packages", "Engine"
FRAMEWORKS = {
    "torch": "torch",
    "lightning": "lightning",
    "transformers": "huggingface",
    "accelerate": "huggingface",
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "keras": "tensorflow",
    "tf-keras": "",
    "jax": "jax",
    "orbax-checkpoint": "jax",
    "horovod": "",
    "xgboost": "xgboost",
    "xgboost-cpu": "xgboost",
    "lightgbm": "lightgbm",
    "scikit-learn": "sklearn",
    "skops": "sklearn",
    "optuna": "tune",
    "hyperopt": "hyperopt",
    "tensorboardX": "tensorboard",
    "s3fs": "s3",
    "starlette": "serve",
    "uvicorn": "serve",
    "mlflow-skinny": "mlflow",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "comet_ml": "comet",
    "aim": "aim",
    "libcst": "port",
    "ray": "ray",
    "gymnasium": "rllib",
}
"""The packages that paceline works with, and the extra that asks for each."""
_SAME_FILES = (("xgboost", "xgboost-cpu"), ("tensorflow", "tensorflow-cpu"))
"""Packages that write over each other."""
_SAME_AS = {"mlflow": "mlflow-skinny", "xgboost": "xgboost-cpu", "tensorflow": "tensorflow-cpu"}
"""Packages that serve as well as the one that the extra names."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*([^;]*)(?:;(.*))?")
_SIGNS = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(rf"({'|'.join(_SIGNS)})\s*([\w.]+)")
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")


def package_findings() -> Iterator[Finding]:
    yield Finding(PACKAGES, "paceline", f"{paceline.__version__}, Python {platform.python_version()}")
    yield from _dependencies()
    required = _required()
    installed = {name: version for name in FRAMEWORKS if (version := _version(name))}
    for name, version in installed.items():
        yield _framework(name, version, required)
    yield from _incompatible(installed)
    yield _engine(installed)


def _dependencies() -> Iterator[Finding]:
    for name, conditions in _required().get("", {}).items():
        version = _version(name)
        if version is None:
            yield Finding(PACKAGES, name, "not installed", "problem", f"pip install '{name}{conditions}'")
        elif not satisfies(version, conditions):
            yield Finding(PACKAGES, name, version, "problem", f"paceline needs {name}{conditions}.")


def _framework(name: str, version: str, required: dict[str, dict[str, str]]) -> Finding:
    extra = FRAMEWORKS[name]
    conditions = required.get(extra, {}).get(_normal(_SAME_AS.get(name, name)), "")
    if conditions and not satisfies(version, conditions):
        advice = f"paceline[{extra}] needs {name}{conditions}."
        return Finding(PACKAGES, name, version, "warning", advice)
    return Finding(PACKAGES, name, version)


def _incompatible(installed: dict[str, str]) -> Iterator[Finding]:
    """Combinations that are known not to work."""
    for one, other in _SAME_FILES:
        if one in installed and other in installed:
            text = f"{one} and {other} are both installed, and one has written over the other"
            yield Finding(PACKAGES, one, text, "warning", f"pip uninstall {one} {other}, then install one of them.")
    has_tensorflow = "tensorflow" in installed or "tensorflow-cpu" in installed
    if has_tensorflow and "tf-keras" not in installed:
        text = "not installed: Keras 3 cannot fit() on several workers"
        yield Finding(PACKAGES, "tf-keras", text, "note", "pip install --no-deps tf_keras")
    if "mlflow" in installed and not satisfies(installed["mlflow"], ">=3.0"):
        text = f"{installed['mlflow']} cannot be imported with the numpy of today"
        yield Finding(PACKAGES, "mlflow", text, "warning", "pip install 'mlflow-skinny>=3.0'")
    if "scikit-learn" in installed and "skops" not in installed:
        text = "not installed: estimators in checkpoints cannot be read without trust"
        yield Finding(PACKAGES, "skops", text, "note", "pip install 'paceline[sklearn]'")


def _engine(installed: dict[str, str]) -> Finding:
    named, address = os.environ.get("PACELINE_ENGINE"), os.environ.get("RAY_ADDRESS")
    if named:
        if named == "ray" and "ray" not in installed:
            advice = "pip install 'paceline[ray]', or remove PACELINE_ENGINE."
            return Finding(ENGINE, "engine", "PACELINE_ENGINE=ray, but Ray is not installed", "problem", advice)
        return Finding(ENGINE, "engine", f"{named}, as PACELINE_ENGINE says")
    if address and find_spec("ray") is not None:
        return Finding(ENGINE, "engine", f"ray, as RAY_ADDRESS={address} says")
    if address:
        text = f"local; RAY_ADDRESS={address} is ignored, as Ray is not installed"
        return Finding(ENGINE, "engine", text, "note", "pip install 'paceline[ray]'")
    return Finding(ENGINE, "engine", "local: workers are processes of this machine")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _required() -> dict[str, dict[str, str]]:
    """Of each extra ("" for what is always needed): package and conditions."""
    found: dict[str, dict[str, str]] = {}
    try:
        requirements = metadata.requires("paceline") or []
    except metadata.PackageNotFoundError:  # a source tree that is not installed
        return {}
    for text in requirements:
        match = _REQUIREMENT.match(text)
        if match:
            extra = _EXTRA.search(match[3] or "")
            found.setdefault(extra[1] if extra else "", {})[_normal(match[1])] = match[2].strip()
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def satisfies(version: str, conditions: str) -> bool:
    """Whether a version meets conditions like ">=2.6,<3". Only the numbers count, not "rc1" or "+cpu"."""
    return all(_meets(_numbers(version), sign, _numbers(bound)) for sign, bound in _CONDITION.findall(conditions))


def _meets(version: tuple[int, ...], sign: str, bound: tuple[int, ...]) -> bool:
    length = max(len(version), len(bound))
    left, right = version + (0,) * (length - len(version)), bound + (0,) * (length - len(bound))
    return bool(_SIGNS[sign](left, right))


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
