"""Names of Ray under the alias: those that exist, and what the others answer."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator

import cloudpickle
import pytest

import paceline.ray
from paceline.compat.ray_alias import ADVICE

ADVISED = [
    ("ray", "get", "pass the object itself"),
    ("ray", "remote", "ProcessPoolExecutor"),
    ("ray", "rllib", "paceline port"),
    ("ray", "serve", "paceline serve"),
    ("ray.util", "placement_group", "PlacementGroupFactory"),
    ("ray.util", "queue", "multiprocessing"),
    ("ray.tune.search", "AxSearch", "OptunaSearch"),
]


@pytest.fixture
def alias() -> Iterator[None]:
    """The real Ray, if other tests have imported it, is put aside meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
            patch.delitem(sys.modules, name)
        patch.setenv("PYTHONPATH", "")
        paceline.ray.install()
        yield
        paceline.ray.uninstall()


@pytest.mark.usefixtures("alias")
@pytest.mark.parametrize(("module", "name", "advice"), ADVISED)
def test_every_form_says_what_to_write_instead(module: str, name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=rf"{name} .*{advice}"):
        getattr(importlib.import_module(module), name)
    forms = ["import {module}.{name}", "from {module} import {name}", "from {module}.{name}.more import other"]
    for form in forms:
        with pytest.raises(ImportError, match=advice):
            exec(form.format(module=module, name=name))


@pytest.mark.usefixtures("alias")
@pytest.mark.parametrize("name", ["ray._private", "ray.tune._internal"])
def test_the_inside_of_ray_says_so(name: str) -> None:
    with pytest.raises(ImportError, match=rf"{name} .*public name"):
        importlib.import_module(f"{name}.utils")


@pytest.mark.usefixtures("alias")
def test_what_backends_import_from_the_inside_exists() -> None:
    group = importlib.import_module("ray.train._internal.worker_group").WorkerGroup
    assert {"execute", "execute_single", "num_workers", "__len__"} <= {*dir(group)}
    host, port = importlib.import_module("ray.train._internal.utils").get_address_and_port()
    assert host == "127.0.0.1"
    assert port > 0


@pytest.mark.usefixtures("alias")
def test_modules_are_those_of_paceline_whatever_the_form() -> None:
    ray = importlib.import_module("ray")
    assert importlib.import_module("ray.train.torch") is ray.train.torch is paceline.train.torch
    assert paceline.train.torch.__spec__.name == "paceline.train.torch"
    assert importlib.import_module("ray.tune.schedulers").ASHAScheduler is paceline.tune.schedulers.ASHAScheduler
    assert importlib.import_module("ray.cloudpickle") is ray.cloudpickle is cloudpickle
    assert cloudpickle.loads(cloudpickle.dumps(ray)) is ray
    names: dict[str, object] = {}
    exec("from ray import *", names)
    assert names["tune"] is paceline.tune


@pytest.mark.usefixtures("alias")
@pytest.mark.parametrize("name", ["ray.quux", "ray.train.quux", "ray.util.quux", "ray.cloudpickle.quux"])
def test_what_nobody_has_is_an_ordinary_error(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=name):
        importlib.import_module(name)


def test_no_advice_hides_a_module_that_exists() -> None:
    assert not {"air", "cloudpickle", "data", "train", "tune", "util"} & ADVICE.keys()


def test_programs_can_compare_versions() -> None:
    assert (2, 0) <= tuple(int(part) for part in paceline.ray.__version__.split(".")) < (3, 0)


def test_what_cannot_be_sent_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert paceline.ray.util.inspect_serializability(len) == (True, set())
    sendable, reasons = paceline.ray.util.inspect_serializability({"guard": threading.Lock()}, name="config")
    assert not sendable
    assert len(reasons) == 1
    assert "config['guard']" in capsys.readouterr().out


def test_small_helpers() -> None:
    from paceline.ray.util.accelerators import NVIDIA_TESLA_V100
    from paceline.ray.util.annotations import DeveloperAPI, PublicAPI
    from paceline.ray.util.debug import log_once

    assert NVIDIA_TESLA_V100 == "V100"
    assert PublicAPI(len) is len
    assert DeveloperAPI(stability="beta")(len) is len
    assert [log_once("here"), log_once("here")] == [True, False]
    assert paceline.ray.util.get_node_ip_address() == "127.0.0.1"
