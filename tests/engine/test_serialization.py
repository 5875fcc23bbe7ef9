from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.air.errors import SerializationError
from paceline.engine.serialization import dumps, loads

GLOBAL_LOCK = threading.Lock()
MAX_NUMBER = 7


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held

    def method(self) -> None:
        pass


def closure_over(sock: Any) -> Any:
    def train_func() -> Any:
        return sock

    return train_func


def with_default(lock: Any = GLOBAL_LOCK) -> None:
    del lock


def local_copy(function: Any) -> Any:
    """The same function as if it had been written in a script: pickled by value."""
    function.__module__ = "__main__"
    return function


def uses_global() -> Any:
    return GLOBAL_LOCK


def test_what_can_travel_travels() -> None:
    value = {"a": [1, 2, (3,)], "f": lambda x: x + 1}
    back = loads(dumps(value, "train_loop_config"))
    assert back["a"] == [1, 2, (3,)]
    assert back["f"](1) == 2


def test_a_lock_deep_in_a_dict_is_named_by_its_path() -> None:
    with pytest.raises(SerializationError, match=r"config\['a'\]\[1\]\.held.*_thread\.lock"):
        dumps({"ok": 1, "a": [0, Holder(threading.Lock())]}, "train_loop_config")


def test_a_generator_and_an_open_file(tmp_path: Path) -> None:
    with pytest.raises(SerializationError, match=r"config\['rows'\].*generator"):
        dumps({"rows": (row for row in [1])}, "config")
    for mode in ("w", "r", "rb"):  # For reading too: its content would travel unnoticed.
        with open(tmp_path / "file", mode) as file, pytest.raises(SerializationError, match=r"config\['log'\] \(_io"):
            dumps({"log": file}, "config")


def test_the_standard_streams_travel_by_name() -> None:
    code = "import sys; from paceline.engine.serialization import *; assert loads(dumps(sys.stderr, 'x')) is sys.stderr"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_closure_variable_is_named() -> None:
    with (
        socket.socket() as sock,
        pytest.raises(SerializationError, match=r"train_func.*closure.*'sock'.*socket"),
    ):
        dumps(closure_over(sock), "train_func")


def test_a_global_and_a_default_are_named() -> None:
    with pytest.raises(SerializationError, match=r"train_func.*global.*'GLOBAL_LOCK'"):
        dumps(local_copy(uses_global), "train_func")
    with pytest.raises(SerializationError, match=r"train_func.*default.*'lock'"):
        dumps(local_copy(with_default), "train_func")


def test_partials_and_methods_are_followed() -> None:
    with pytest.raises(SerializationError, match=r"train_func\.keywords\['lock'\]"):
        dumps(functools.partial(print, lock=threading.Lock()), "train_func")
    with pytest.raises(SerializationError, match=r"train_func\.__self__\.held"):
        dumps(Holder(threading.Lock()).method, "train_func")


def test_an_object_whose_own_pickling_raises_is_named() -> None:
    class Refuses:
        def __reduce__(self) -> Any:
            raise RuntimeError("not today")

    with pytest.raises(SerializationError, match=r"config\['x'\].*Refuses.*not today"):
        dumps({"x": Refuses()}, "config")


def test_a_structure_that_contains_itself_does_not_loop() -> None:
    circle: dict[str, Any] = {"lock": threading.Lock()}
    circle["self"] = circle
    with pytest.raises(SerializationError, match=r"\['lock'\]"):
        dumps(circle, "config")


def test_the_advice_is_there_and_no_traceback_of_the_pickler() -> None:
    with pytest.raises(SerializationError, match="training function") as caught:
        dumps(threading.Lock(), "train_func")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


SCRIPT_SIDE = """
import sys
from paceline.engine.serialization import dumps
counter = 0
class Net:
    def name(self): return "net"
class Unreferenced: pass
def helper(): return Net()
def train():
    global counter
    counter += 1
    return helper()
sys.stdout.buffer.write(dumps([train, Unreferenced()], "train"))
"""

WORKER_SIDE = """
import pickle, sys
from paceline.engine.serialization import loads, new_main_module
data = sys.stdin.buffer.read()
main = sys.modules["__main__"] = new_main_module("/somewhere/script.py")
train, other = loads(data)
net = train()
import __main__
assert __main__.counter == 1, "globals of the script are those of __main__"
assert __main__.__file__ == "/somewhere/script.py"
assert pickle.loads(pickle.dumps(net)).name() == "net"
assert type(pickle.loads(pickle.dumps(other))) is type(other)
assert pickle.loads(pickle.dumps(__main__.helper)) is __main__.helper
print("fine")
"""


def test_a_workers_main_module_holds_what_came_from_the_script() -> None:
    data = subprocess.run([sys.executable, "-c", SCRIPT_SIDE], capture_output=True, check=True).stdout
    worker = subprocess.run([sys.executable, "-c", WORKER_SIDE], input=data, capture_output=True, check=False)
    assert worker.stdout == b"fine\n", worker.stderr.decode()


PACKAGE_MAIN = """
import sys
from paceline.air import RunConfig, ScalingConfig
from paceline.train import DataParallelTrainer, report

def train():
    from . import util
    import __main__
    report({"answer": util.ANSWER, "name": __main__.__spec__.name})

if __name__ == "__main__":
    result = DataParallelTrainer(
        train, scaling_config=ScalingConfig(num_workers=1), run_config=RunConfig(storage_path=sys.argv[1], verbose=0)
    ).fit()
    print(result.metrics["answer"], result.metrics["name"])
"""


@pytest.mark.parametrize(
    ("file", "module"), [("main", "package.main"), pytest.param("__main__", "package", marks=pytest.mark.slow)]
)
def test_relative_imports_work_in_a_script_that_is_run_as_a_module(tmp_path: Path, file: str, module: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "util.py").write_text("ANSWER = 42")
    (package / f"{file}.py").write_text(PACKAGE_MAIN)
    command = [sys.executable, "-m", module, str(tmp_path / "results")]
    environment = {**os.environ, "PYTHONPATH": str(Path(paceline.__file__).parents[1])}
    script = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert script.stdout.decode().split() == ["42", f"package.{file}"], script.stderr.decode()


def test_loading_in_the_driver_leaves_its_main_module_alone() -> None:
    before = dict(vars(sys.modules["__main__"]))
    function = loads(dumps(local_copy(lambda: MAX_NUMBER), "f"))
    assert function() == 7
    assert vars(sys.modules["__main__"]).keys() == before.keys()
