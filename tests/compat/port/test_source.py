"""Porting the text of a program."""

from __future__ import annotations

import pytest

from paceline.compat.port.source import MARK, NotPythonError, apply, port

PORTED = {
    "import ray": "import paceline",
    "import ray\nray.init(); ray.data.read_csv('x').map(f)": (
        "import paceline\npaceline.init(); paceline.data.read_csv('x').map(f)"
    ),
    "import os, ray  # both\nray.init()": "import os, paceline  # both\npaceline.init()",
    "import ray as r\nr.tune.run(f)": "import paceline as r\nr.tune.run(f)",
    "import ray.train as rt\nrt.report({})": "import paceline.train as rt\nrt.report({})",
    "import ray.tune\nray.tune.run(f)": "import paceline.tune\npaceline.tune.run(f)",
    "from ray import tune, air as a": "from paceline import tune, air as a",
    "from ray.train.torch import (  # why\n    TorchTrainer,  # this\n    prepare_model,\n)": (
        "from paceline.train.torch import (  # why\n    TorchTrainer,  # this\n    prepare_model,\n)"
    ),
    "from ray.train._internal.worker_group import WorkerGroup": (
        "from paceline.train._internal.worker_group import WorkerGroup"
    ),
    # Its framework need not be installed.
    "from ray.train.horovod import HorovodTrainer": "from paceline.train.horovod import HorovodTrainer",
    "from ray.tune import *": "from paceline.tune import *",
    "if True: import ray; ray.init()": "if True: import paceline; paceline.init()",
    # Names of Ray's that paceline.ray has, or somebody else.
    "import ray\nprint(ray.__version__)": "import paceline\nprint(paceline.ray.__version__)",
    "import ray as r\nr.util.log_once('x')": "import paceline as r\nr.ray.util.log_once('x')",
    "from ray.util import log_once": "from paceline.ray.util import log_once",
    "from ray.cloudpickle import dumps": "from cloudpickle import dumps",
    "import ray.cloudpickle as pickle": "import cloudpickle as pickle",
    "import ray.cloudpickle\nray.cloudpickle.dumps(1)": "import paceline.ray\npaceline.ray.cloudpickle.dumps(1)",
    # An import that may fail, names that other scopes see, types.
    "try:\n    import ray\nexcept ImportError:\n    ray = None": (
        "try:\n    import paceline\nexcept ImportError:\n    paceline = None"
    ),
    "def f():\n    global ray\n    import ray\n    ray.init()\n": (
        "def f():\n    global paceline\n    import paceline\n    paceline.init()\n"
    ),
    "import ray\ndef f(x: ray.data.Dataset):\n    y = x  # type: ray.data.Dataset\n": (
        "import paceline\ndef f(x: paceline.data.Dataset):\n    y = x  # type: paceline.data.Dataset\n"
    ),
    "import ray\nprint(f'{ray.data.range(3)!r:>{ray.__version__}}', [ray for x in ray.data.range(2)])": (
        "import paceline\nprint(f'{paceline.data.range(3)!r:>{paceline.ray.__version__}}', "
        "[paceline for x in paceline.data.range(2)])"
    ),
    "import ray\r\n\r\nray.init()\r\n": "import paceline\r\n\r\npaceline.init()\r\n",
    "é = 'ü'; import ray; ray.init(ä)": "é = 'ü'; import paceline; paceline.init(ä)",
}

UNCHANGED = [
    "def f(ray):\n    return ray.origin\n",
    "def f():\n    ray = Ray()\n    return ray.origin\n",
    "print('import ray')  # ray.train\n",
    "from . import ray\nray.init()\n",
    "from .ray import tune\n",
    "from optics import ray\nray.trace()\n",
    "import rayon\nrayon.x\n",
    "import paceline as ray\nray.init()\n",
    "scene.ray.cast(ray=1)\n",
    # RLlib, and what it needs of Ray
    "import ray\nfrom ray.rllib.algorithms.ppo import PPOConfig\nray.init()\n",
    "import ray.rllib.algorithms.ppo as ppo\nfrom ray.tune.registry import register_env\n",
]


def result_of(text: str) -> str:
    return apply(text.encode(), port(text.encode()).edits).decode()


@pytest.mark.parametrize("before", PORTED)
def test_what_exists_is_renamed(before: str) -> None:
    assert result_of(before) == PORTED[before]
    assert not port(before.encode()).marks
    assert result_of(PORTED[before]) == PORTED[before]


@pytest.mark.parametrize("text", UNCHANGED)
def test_what_is_not_ray_or_must_stay_is_left_alone(text: str) -> None:
    assert result_of(text) == text
    assert not port(text.encode()).marks


def test_a_parameter_shadows_the_import() -> None:
    text = "import ray\nray.init()\ndef f(ray):\n    return ray.origin, lambda: ray.x\n"
    assert result_of(text) == text.replace("import ray\nray.", "import paceline\npaceline.")


def test_what_has_no_counterpart_stays_with_advice_and_the_import_it_needs() -> None:
    text = "import ray\n\nray.init()\n\n\n@ray.remote\ndef task():\n    if True:\n        return ray.get(1)\n"
    lines = result_of(text).splitlines()
    assert lines[:4] == ["import paceline", "import ray", "", "paceline.init()"]
    assert lines[6].startswith(f"{MARK}ray.remote")
    assert "ProcessPoolExecutor" in lines[6]
    assert lines[7] == "@ray.remote"
    assert lines[10].startswith(f"        {MARK}ray.get")
    assert lines[11] == "        return ray.get(1)"


def test_an_import_is_split_if_only_a_part_has_a_counterpart() -> None:
    first, second, third = result_of("from ray import tune, serve, air\n").splitlines()
    assert first.startswith(f"{MARK}ray.serve")
    assert (second, third) == ("from ray import serve", "from paceline import tune, air")


def test_comments_in_an_import_that_is_split_survive() -> None:
    text = "from ray import (\n    tune,  # to search\n    serve,  # to serve\n)\n"
    changed = result_of(text)
    assert "tune,  # to search" in changed
    assert "serve,  # to serve" in changed
    compile(changed, "changed", "exec")


def test_a_use_below_an_import_is_marked() -> None:
    marks = port(b"from ray import tune\nx = tune.search.AxSearch()\n").marks
    assert ["OptunaSearch" in mark.advice for mark in marks] == [True]


def test_rllib_stays_beside_what_is_ported() -> None:
    text = (
        "import ray\nfrom ray.rllib.algorithms.ppo import PPOConfig\nfrom ray.train.rl import RLTrainer\n"
        "from ray.tune import register_env, Tuner\nray.init()\nray.rllib.utils\n"
    )
    assert result_of(text) == (
        "import paceline\nimport ray\nfrom ray.rllib.algorithms.ppo import PPOConfig\n"
        "from paceline.train.rl import RLTrainer\nfrom ray.tune import register_env\n"
        "from paceline.tune import Tuner\npaceline.init()\nray.rllib.utils\n"
    )
    assert not port(text.encode()).marks


def test_an_environment_registered_by_attribute_is_marked() -> None:
    text = b"from ray import tune\nfrom ray.train.rl import RLTrainer\ntune.register_env('x', f)\n"
    (mark,) = port(text).marks
    assert "from ray.tune import register_env" in mark.advice


MIXED = """\
# What this does
import ray  # everything
import ray.data
from ray import serve, tune
from ray.util.queue import Queue


@serve.deployment
class A:
    def b(self, ray):
        return ray


def f():
    for _ in ray.get([]): ray.put(1)
    try:
        tune.run(f, callbacks=[ray.tune.Callback(), ray.nothing])
    except ray.exceptions.RayError:
        pass
"""


@pytest.mark.parametrize("text", [MIXED, MIXED.replace("\n", "\r\n"), MIXED.rstrip()])
def test_porting_again_changes_nothing(text: str) -> None:
    once = result_of(text)
    compile(once, "once", "exec")
    assert once != text
    assert not port(once.encode()).edits
    assert port(once.encode()).marks  # what is left is still named


@pytest.mark.parametrize("text", ["def f(:\n", "print 'ray'\n", "\x00"])
def test_what_is_not_python_is_an_error(text: str) -> None:
    with pytest.raises(NotPythonError):
        port(text.encode())


@pytest.mark.parametrize("before", ["", "x = 1; "])
def test_an_import_that_is_split_may_share_its_line(before: str) -> None:
    program = f"{before}from ray import serve, tune ; tune.run(f)\n"
    *_, line = apply(program.encode(), port(program.encode()).edits).decode().splitlines()
    assert line == f"{before}from ray import serve; from paceline import tune ; tune.run(f)"
