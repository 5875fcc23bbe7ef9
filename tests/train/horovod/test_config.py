from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from paceline.air.config import RunConfig, ScalingConfig
from paceline.air.errors import ConfigError
from paceline.engine.places import Node, WorkerPlace
from paceline.train.horovod import HorovodConfig, HorovodTrainer
from paceline.train.horovod.backend import (
    HorovodBackend,
    HorovodTorchBackend,
    HorovodTorchConfig,
    addresses_of_own_name,
    check_own_name,
)


def test_defaults() -> None:
    config = HorovodConfig()
    assert (config.nics, config.verbose, config.timeout_s, config.placement_group_timeout_s) == (None, 1, 300, 100)
    assert (config.key, config.ssh_port, config.ssh_identity_file, config.ssh_str) == (None, None, None, None)
    assert config.backend_cls is HorovodBackend


def test_what_only_other_machines_need_is_taken() -> None:
    config = HorovodConfig(key="k", ssh_port=22, ssh_identity_file="id", ssh_str="text", placement_group_timeout_s=1)
    assert config.ssh_port == 22


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ({"timeout_s": 0}, r"timeout_s.*\b0\b"),
        ({"timeout_s": "60"}, "timeout_s.*'60'"),
        ({"timeout_s": float("inf")}, "timeout_s.*inf"),
        ({"verbose": -1}, "verbose.*-1"),
        ({"verbose": "yes"}, "verbose.*'yes'"),
        ({"nics": []}, r"nics.*\['eth0'\]"),
        ({"nics": 3}, r"nics.*3.*\['eth0'\]"),
    ],
)
def test_what_cannot_work_is_refused(setting: dict[str, Any], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        HorovodConfig(**setting)


PLACE = WorkerPlace(1, Node("b", "10.0.0.2", "the-other", 1), 1, 0, 1)


@pytest.mark.parametrize("nics", ["ib0", ["ib0"], {"ib0"}, ("nowhere7", "ib0", "eth0"), iter(["ib0"])])
def test_the_first_interface_that_is_there_is_taken(nics: Any) -> None:
    config = HorovodConfig(nics=nics)
    assert config.interface(PLACE, ["lo", "eth0", "ib0"]) == "ib0"
    assert config.interface(PLACE, ["lo", "ib0"]) == "ib0"  # an iterator is used up only once


@pytest.mark.parametrize("nics", ["nowhere7", {"nowhere7", "nowhere8"}])
def test_a_machine_without_any_of_the_interfaces_is_named(nics: Any) -> None:
    with pytest.raises(ConfigError, match=r"nowhere7.*the-other has none of them, but lo, eth0"):
        HorovodConfig(nics=nics).interface(PLACE, ["lo", "eth0"])


def test_the_name_of_a_machine_must_lead_others_to_it() -> None:
    check_own_name(PLACE, ["10.0.0.2"])
    check_own_name(PLACE, ["192.0.2.7", "127.0.1.1"])  # another network of that machine
    for found, reason in (([], "does not resolve"), (["127.0.1.1", "10.0.0.2"], r"resolves to 127\.0\.1\.1")):
        with pytest.raises(ConfigError, match=rf"the-other.*{reason}.*'10\.0\.0\.2 the-other' into /etc/hosts"):
            check_own_name(PLACE, found)
    assert addresses_of_own_name()


def test_interfaces_are_looked_for_where_the_workers_are() -> None:
    trainer = HorovodTrainer(
        with_torch,
        horovod_config=HorovodConfig(nics="nowhere7"),
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(engine="inline", verbose=0),
    )
    with pytest.raises(ConfigError, match=r"nowhere7.*\blo\b"):
        trainer.fit()


def test_variables_follow_the_settings() -> None:
    variables = HorovodBackend().environment(HorovodConfig(timeout_s=1.5, verbose=3))
    assert variables == {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "2",
        "HOROVOD_LOG_LEVEL": "debug",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": "1",
    }
    levels = [HorovodBackend().environment(HorovodConfig(verbose=n))["HOROVOD_LOG_LEVEL"] for n in (0, 1, 2, 9)]
    assert levels == ["error", "warning", "info", "debug"]
    # Which flavour a function uses is a guess: TensorFlow must find its variables in any case.
    assert HorovodTorchBackend().environment(HorovodTorchConfig())["TF_USE_LEGACY_KERAS"] == "1"


def test_gpus_that_were_not_asked_for_are_out_of_the_reach_of_tensorflow_only() -> None:
    assert (HorovodBackend.hide_other_gpus, HorovodTorchBackend.hide_other_gpus) == (True, False)


def with_torch() -> None:
    import torch

    torch.zeros(1)


def with_torch_and_config(config: dict[str, Any]) -> None:
    import torch

    torch.zeros(1)


def with_tensorflow() -> None:
    import tensorflow

    tensorflow.zeros(1)


def with_horovods_torch() -> None:
    import horovod.torch

    horovod.torch.init()


def with_horovods_keras() -> None:
    import horovod.tensorflow.keras
    import torch

    torch.zeros(1)
    horovod.tensorflow.keras.init()


@pytest.mark.parametrize(
    ("function", "forked"),
    [
        (with_torch, True),
        (with_horovods_torch, True),
        (with_tensorflow, False),
        (with_horovods_keras, False),
        (print, False),
    ],
)
def test_only_what_uses_torch_alone_is_forked(function: Any, forked: bool) -> None:
    config = HorovodConfig(timeout_s=7, nics=["lo"])
    trainer = HorovodTrainer(function, horovod_config=config, scaling_config=ScalingConfig(num_workers=1))
    used = trainer.to_run_spec().backend_config
    assert isinstance(used, HorovodConfig)
    assert used.backend_cls is (HorovodTorchBackend if forked else HorovodBackend)
    assert (used.timeout_s, used.nics) == (7, ("lo",))


class Maker:
    def make(self) -> None:
        with_tensorflow()


@pytest.mark.parametrize(
    ("given", "forked"),
    [(with_tensorflow, False), ([with_tensorflow], False), (Maker(), False), (with_torch, True)],
)
def test_a_tensorflow_model_in_the_config_counts(given: Any, forked: bool) -> None:
    trainer = HorovodTrainer(with_torch_and_config, train_loop_config={"make": given})
    assert trainer.backend_config.backend_cls is (HorovodTorchBackend if forked else HorovodBackend)


def test_other_names_of_horovod_config() -> None:
    for name in ("horovod_config", "horovod_backend", "tensorflow_backend"):
        arguments: dict[str, Any] = {name: HorovodConfig(timeout_s=7)}
        trainer = HorovodTrainer(print, scaling_config=ScalingConfig(num_workers=1), **arguments)
        assert trainer.to_run_spec().backend_config is arguments[name]
        with pytest.raises(ConfigError, match=f"{name}.*HorovodConfig.*str"):
            HorovodTrainer(print, **{name: "gloo"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"horovod_config.*tensorflow_backend"):
        HorovodTrainer(print, horovod_config=HorovodConfig(), tensorflow_backend=HorovodConfig())


def test_the_driver_imports_no_framework() -> None:
    script = (
        "import sys, paceline.train.horovod as h; h.HorovodTrainer; h.HorovodConfig().backend_cls\n"
        "print('horovod' in sys.modules)\n"
        "import paceline.train.horovod.rendezvous\n"
        "print({'torch', 'tensorflow', 'keras'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).split() == ["False", "set()"]
