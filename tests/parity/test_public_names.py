"""Every public name of the API that paceline implements exists, or says what to write instead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = [
    f"paceline.{line}".split()
    for line in Path(__file__).with_name("public_names.txt").read_text().splitlines()
    if not line.startswith("#")
]

ASK = """
import importlib, json, sys
from paceline.air.absent import AbsentNameError

def answer(module, name):
    try:
        exec(f"from {module} import {name}")
    except ImportError as error:
        from_import = str(error)
    else:
        return "exists" if hasattr(importlib.import_module(module), name) else "exists in the `from` form only"
    if "pip install 'paceline[" in from_import:
        return "exists"  # and its framework is not installed here
    try:
        getattr(importlib.import_module(module), name)
    except AbsentNameError as error:
        attribute = str(error)
    except ModuleNotFoundError as error:  # already the module is advised against
        attribute = str(error)
    except AttributeError as error:
        return str(error)
    else:
        return "exists as an attribute only"
    useless = [text for text in (from_import, attribute) if "does not exist here: " not in text.splitlines()[0]]
    return useless[0] if useless else "advice"

print(json.dumps([[module, name, answer(module, name)] for module, name in json.loads(sys.argv[1])]))
"""


@pytest.fixture(scope="module")
def answers() -> list[list[str]]:
    """What another interpreter finds: frameworks that a name loads may set environment variables."""
    command = [sys.executable, "-W", "ignore", "-c", ASK, json.dumps(NAMES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("package", ["air", "data", "train", "tune"])
def test_every_name_exists_or_says_what_to_write_instead(package: str, answers: list[list[str]]) -> None:
    of_package = {f"{module}.{name}": text for module, name, text in answers if module.split(".")[1] == package}
    useless = {name: text for name, text in of_package.items() if text not in ("exists", "advice")}
    assert not useless, f"{len(useless)} of {len(of_package)} names: {useless}"
