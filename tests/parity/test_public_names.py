"""Every public name of the API that paceline implements exists, or says what to write instead."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from paceline.air.absent import AbsentNameError

NAMES = [
    (f"paceline.{module}", name)
    for module, name in (
        line.split()
        for line in Path(__file__).with_name("public_names.txt").read_text().splitlines()
        if not line.startswith("#")
    )
]


def answer(module: str, name: str) -> str:
    """How a name answers in both forms: "exists", "advice", or the useless error."""
    try:
        exec(f"from {module} import {name}")
    except ImportError as error:
        from_import = str(error)
    else:
        return "exists" if hasattr(importlib.import_module(module), name) else "exists in `from` form only"
    if "pip install 'paceline[" in from_import:  # the framework is not installed here
        return "exists"
    if "does not exist here: " not in from_import:
        return from_import
    try:
        getattr(importlib.import_module(module), name)
    except (AbsentNameError, ImportError) as error:  # an ImportError is the module's own advice
        return "advice" if "does not exist here: " in str(error) else str(error)
    except AttributeError as error:
        return str(error)
    return "exists as an attribute only"


@pytest.mark.filterwarnings("ignore")  # of libraries about each other
@pytest.mark.parametrize("package", ["air", "data", "train", "tune"])
def test_every_name_exists_or_says_what_to_write_instead(package: str) -> None:
    of_package = [each for each in NAMES if each[0].split(".")[1] == package]
    answers = {f"{module}.{name}": answer(module, name) for module, name in of_package}
    useless = {name: text for name, text in answers.items() if text not in ("exists", "advice")}
    assert not useless, f"{len(useless)} of {len(answers)} names: {useless}"
