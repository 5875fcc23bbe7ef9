"""The names in the tables of docs/porting.md: replacements exist, and what is gone answers with advice."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import paceline
import paceline.ray

PAGE = Path(paceline.__file__).parents[1] / "docs" / "porting.md"
PACKAGES = ("air", "data", "serve", "session", "train", "tune")
HOMES = (
    "air",
    "air.errors",
    "data",
    "data.datasource",
    "data.preprocessors",
    "engine.base",
    "train",
    "train.base_trainer",
    "train.batch_predictor",
    "train.horovod",
    "train.torch",
    "tune",
    "tune.logger",
    "tune.schedulers",
    "tune.search",
    "tune.search.optuna",
)
"""Where names without a package are looked for."""
NOT_LOOKED_FOR = {
    "Pillow",
    "RLModules",
    "PredictorClass",
    "DatasetPipeline",
    "FailureTuples",
    "RLPredictor",
    "RLTrainer",
}
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


def rows(heading: str) -> list[list[str]]:
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def names(cells: list[str]) -> list[str]:
    return sorted({name for cell in cells for name in NAME.findall(cell)})


def found(name: str) -> Any:
    """What the page calls so; LookupError if nothing is called so."""
    first, *rest = name.split(".")
    if first == "paceline":
        value: Any = paceline
    elif first in PACKAGES:
        value = paceline.air.session if first == "session" else getattr(paceline, first)
    else:
        modules = [importlib.import_module(f"paceline.{home}") for home in HOMES]
        value = next((getattr(module, first) for module in modules if hasattr(module, first)), None)
        if value is None:
            raise LookupError(name)
    for part in rest:
        value = getattr(value, part)
    return value


def is_ours(name: str) -> bool:
    first = name.split(".")[0]
    return first not in NOT_LOOKED_FOR and (
        ("." in name and first in ("paceline", *PACKAGES)) or (first[0].isupper() and first != first.upper())
    )


OURS = names([here for _, here, _ in rows("What changes")] + [instead for _, instead in rows("What is gone")])
GONE = [name for name in names([there for there, _ in rows("What is gone")]) if name != "tune.run"]  # an argument of it


@pytest.mark.parametrize("name", [name for name in OURS if is_ours(name)])
def test_what_the_page_names_exists(name: str) -> None:
    assert found(name) is not None


@pytest.mark.parametrize("name", [name for name in GONE if name.split(".")[0] in ("ray", *PACKAGES) and "." in name])
def test_what_is_gone_answers_with_advice(name: str) -> None:
    path = name.removeprefix("ray.")
    module, _, last = f"paceline.{'ray.' if name.startswith('ray.') else ''}{path}".rpartition(".")
    with pytest.raises(ImportError) as raised:
        exec(f"from {module} import {last}", {})
    assert "cannot import name" not in str(raised.value)
    assert "No module named" not in str(raised.value)
