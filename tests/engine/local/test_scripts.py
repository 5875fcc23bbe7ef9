"""Programs as users write them: without a main guard, from standard input, with lambdas and classes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

BEGINNING = """
import dataclasses, enum, os, pickle, sys
from paceline.engine.base import Placement, TaskEnded, WorkerRequest
from paceline.engine.choose import choose_engine
from paceline.engine.serialization import dumps

def placement(n, **settings):
    places = [WorkerRequest(r, os.path.abspath(f"rank_{r}"), os.path.abspath(f"rank_{r}.log")) for r in range(n)]
    return Placement("script", tuple(places), **settings)
"""

MODEL = """
class Color(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Base:
    width: int
    def describe(self): return f"{type(self).__name__}({self.width}, {Color.RED.name})"

class Net(Base):
    def describe(self): return "own " + super().describe()

calls = 0

def build():
    global calls
    calls += 1
    net = pickle.loads(pickle.dumps(Net(3)))
    return [net.describe(), calls, __name__]
"""

RUN = """
group = choose_engine().start_group(placement(2))
factor = 5
print(group.execute(build))
print(group.execute(build))
print(group.execute(lambda x: x * factor, 2))
group.shutdown(grace=10)
"""

EXPECTED = [
    "[['own Net(3, RED)', 1, '__main__'], ['own Net(3, RED)', 1, '__main__']]",
    "[['own Net(3, RED)', 1, '__main__'], ['own Net(3, RED)', 1, '__main__']]",
    "[10, 10]",
]


def run(arguments: list[str], folder: Path, text: str | None = None) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        input=text,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.mark.parametrize("how", ["script", "stdin", pytest.param("command", marks=pytest.mark.slow)])
def test_a_program_without_a_main_guard(tmp_path: Path, how: str) -> None:
    program = BEGINNING + MODEL + RUN
    if how == "script":
        (tmp_path / "script.py").write_text(program)
        output = run(["script.py"], tmp_path)
    elif how == "stdin":
        output = run(["-"], tmp_path, program)
    else:
        output = run(["-c", program], tmp_path)
    assert output == EXPECTED


def test_a_module_beside_the_script_is_found_from_the_workers_directory(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def answer():\n    return 42\n")
    (tmp_path / "script.py").write_text(BEGINNING + "import beside\n" + RUN.replace("build", "beside.answer"))
    assert run(["script.py"], tmp_path)[0] == "[42, 42]"


def test_spawned_helpers_of_a_worker_find_the_script(tmp_path: Path) -> None:
    program = (
        BEGINNING
        + """
import multiprocessing

def double(x): return 2 * x

def use_a_pool():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(double, [1, 2])

if __name__ == "__main__":
    group = choose_engine().start_group(placement(1))
    print(group.execute(use_a_pool))
    group.shutdown()
"""
    )
    (tmp_path / "script.py").write_text(program)
    assert run(["script.py"], tmp_path) == ["[[2, 4]]"]


def test_a_script_without_a_guard_is_not_started_again_by_a_spawned_helper(tmp_path: Path) -> None:
    program = (
        BEGINNING
        + """
import multiprocessing

def child(): pass

def spawn_one():
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    return process.exitcode

group = choose_engine().start_group(placement(1))
print(group.execute(spawn_one))
group.shutdown()
"""
    )
    (tmp_path / "script.py").write_text(program)
    assert run(["script.py"], tmp_path) == ["[1]"]
    assert "if __name__ == '__main__'" in (tmp_path / "rank_0.log").read_text()


def test_a_forked_child_of_the_driver_uses_an_engine_of_its_own(tmp_path: Path) -> None:
    program = (
        BEGINNING
        + """
group = choose_engine().start_group(placement(1))
if (child := os.fork()) == 0:
    own = choose_engine().start_group(placement(1))
    print("child", own.execute(lambda: 1), flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print("parent", group.execute(lambda: 2))
"""
    )
    assert run(["-c", program], tmp_path) == ["child [1]", "parent [2]"]
