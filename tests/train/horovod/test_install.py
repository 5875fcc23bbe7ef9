"""tools/horovod/install with a Python that only plays its part: what becomes of the wheel that is kept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools" / "horovod"

PYTHON = """#!/usr/bin/env bash
set -eu
case "$*" in
  -) # a program on stdin: which versions there are, or whether Horovod loads
    program=$(cat)
    if [[ $program == *version_of* ]]; then echo "$TORCH none cp311-x86_64"; exit; fi
    grep -q "$LOADS" "$SITE"/horovod ;;
  *" install "*--target*) ;; # the tools of the build
  *" wheel "*)
    echo build >>"$LOG"
    while [[ $1 != --wheel-dir ]]; do shift; done
    mkdir -p "$2"
    echo new >"$2/horovod-0.28.1-cp311-cp311-linux_x86_64.whl" ;;
  *" install "*)
    echo install >>"$LOG"
    [[ $PIP_WORKS == yes ]] && cat "${@: -1}" >"$SITE"/horovod ;;
esac
"""


class Machine:
    """The scripts, a Python, a compiler and a cache of wheels."""

    def __init__(self, folder: Path) -> None:
        self.tools = Path(shutil.copytree(TOOLS, folder / "tools"))
        self.folder, self.cache, self.log = folder, folder / "cache", folder / "log"
        for name, text in (("python", PYTHON), ("cmake", "#!/bin/sh\n"), ("make", "#!/bin/sh\n")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def install(self, *, torch: str = "2.13.0", loads: str = "new", pip_works: str = "yes", **others: str) -> str:
        """What was done; its exit code and message come first if it failed."""
        self.log.write_text("")
        variables = {"SITE": str(self.folder), "LOG": str(self.log), "PACELINE_WHEELS": str(self.cache)}
        path = f"{self.folder}:{os.environ['PATH']}"
        chosen = {"TORCH": torch, "LOADS": loads, "PIP_WORKS": pip_works, "PACELINE_CXX": "make", **others}
        done = subprocess.run(
            [str(self.tools / "install"), str(self.folder / "python")],
            env={**os.environ, **variables, **chosen, "PATH": path},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        said = done.stderr.strip().splitlines()[-1] + ": " if done.returncode else ""
        return said + " ".join(self.log.read_text().split())

    def wheels(self) -> list[str]:
        return [path.read_text().strip() for path in self.cache.rglob("*.whl")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_wheel_is_built_once_for_each_version_of_pytorch(machine: Machine) -> None:
    assert machine.install() == "build install install"
    assert machine.install() == "install install"
    assert machine.install(torch="2.14.0") == "build install install"
    assert machine.wheels() == ["new", "new"]
    assert sorted(path.name for path in machine.cache.rglob("*") if path.is_file()) == 2 * [
        "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    ]


def test_trouble_of_pip_does_not_cost_the_wheel(machine: Machine) -> None:
    machine.install()
    failed = machine.install(pip_works="no")
    assert failed.startswith("Horovod could not be installed")
    assert failed.endswith(": install")
    assert machine.wheels() == ["new"]


def test_a_wheel_that_does_not_load_is_built_again(machine: Machine) -> None:
    machine.install()
    (kept,) = machine.cache.rglob("*.whl")
    kept.write_text("old\n")
    assert machine.install() == "install install build install install"
    assert machine.wheels() == ["new"]


def test_another_way_of_building_makes_another_wheel(machine: Machine) -> None:
    machine.install()
    with (machine.tools / "cxx").open("a") as wrapper:
        wrapper.write("# changed\n")
    assert machine.install() == "build install install"


def test_what_cannot_work_is_told(machine: Machine) -> None:
    assert re.search("does not load.*: build install install$", machine.install(loads="newer"))
    unusable = machine.install(torch="none")
    assert re.search(f"PyTorch or TensorFlow.*{machine.folder / 'python'}.*: $", unusable)
    missing = machine.install(torch="3", PACELINE_CXX="no-such-compiler")
    assert re.search(r"no-such-compiler.*cmake, make and a C\+\+ compiler", missing)
