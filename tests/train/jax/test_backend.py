"""How the workers of a JaxTrainer become one program, and what happens when one of them leaves or fails."""

from __future__ import annotations

import inspect
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import psutil
import pytest

from paceline import train
from paceline.air import FailureConfig, RunConfig, ScalingConfig
from paceline.air.errors import ConfigError, ReportMismatchError, TrainingFailedError
from paceline.engine.places import Node, WorkerPlace
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.train.jax import JaxConfig, JaxTrainer, backend
from paceline.train.jax.backend import JaxBackend, JaxProcess
from tests.train.jax.loops import sum_over_ranks

REPORTS = 3


def trainer(loop: Any, *, workers: int = 2, jax_config: JaxConfig | None = None, **config: Any) -> JaxTrainer:
    return JaxTrainer(
        loop,
        train_loop_config=config,
        jax_config=jax_config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(hang_timeout_s=None)),
    )


# -- one program -----------------------------------------------------------------------------------


def test_the_workers_are_one_program_though_the_driver_has_used_jax(tmp_path: Path) -> None:
    """The driver's threads do no harm: workers are forked from a process that has only imported JAX."""
    assert float(jax.numpy.ones(3).sum()) == 3

    def loop(config: dict[str, Any]) -> None:
        context = train.get_context()
        assert jax.process_index() == context.get_world_rank()
        assert jax.process_count() == context.get_world_size() == 2
        assert (jax.device_count(), jax.local_device_count()) == (4, 2)
        assert {device.platform for device in jax.devices()} == {"cpu"}
        assert not jax.config.jax_enable_preemption_service  # it would take SIGTERM for itself
        rank = context.get_world_rank()
        train.report({"sum": sum_over_ranks(rank + 1.0), "closure": float(closed_over[0])})
        addresses = [each.laddr.ip for each in psutil.Process().net_connections("inet") if each.status == "LISTEN"]
        Marks(config["marks"]).say("listens", addresses=addresses)

    closed_over = jax.numpy.ones(2)  # an array of the driver's
    config = JaxConfig(cpu_devices_per_worker=2)
    result = trainer(loop, jax_config=config, marks=str(tmp_path)).fit()
    assert result.metrics is not None
    assert (result.metrics["sum"], result.metrics["closure"]) == (3, 1)
    listening = [address for said in Marks(tmp_path).read("listens") for address in said["addresses"]]
    assert len(listening) >= 3  # the coordination service, and Gloo on each rank
    assert all(address.removeprefix("::ffff:").startswith("127.") for address in listening)


def test_one_worker_connects_nothing_and_has_its_share_of_the_threads() -> None:
    def loop() -> None:
        assert not jax.distributed.is_initialized()
        threads = {name: os.environ[name] for name in ("NPROC", "OMP_NUM_THREADS")}
        train.report({"sum": sum_over_ranks(1.0), **threads})

    result = trainer(loop, workers=1).fit()
    assert result.metrics is not None
    assert result.metrics["sum"] == 1
    assert result.metrics["NPROC"] == result.metrics["OMP_NUM_THREADS"]


def test_the_inline_engine_leaves_the_driver_as_it_was() -> None:
    before, platforms = dict(os.environ), jax.config.jax_platforms

    def loop() -> None:
        raise ValueError(f"on purpose: {sum_over_ranks(2.0)}")

    with pytest.raises(TrainingFailedError, match=r"on purpose: 2\.0"):
        JaxTrainer(
            loop, scaling_config=ScalingConfig(num_workers=1), run_config=RunConfig(engine="inline", verbose=0)
        ).fit()
    assert dict(os.environ) == before
    assert jax.config.jax_platforms == platforms


# -- leaving ---------------------------------------------------------------------------------------


def step_and_report() -> None:
    train.report({"sum": sum_over_ranks(1.0)})


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_rank_that_waits_for_one_that_has_returned_fails_at_once(devices: int) -> None:
    def loop() -> None:
        for _ in range(REPORTS + (train.get_context().get_world_rank() == 0)):
            step_and_report()

    with pytest.raises(TrainingFailedError) as caught:
        trainer(loop, jax_config=JaxConfig(cpu_devices_per_worker=devices)).fit()
    cause = caught.value.root_cause
    assert cause is not None
    assert (cause.kind, cause.rank) == ("report_mismatch", 1)
    assert cause.message.startswith(f"rank 1 returned after report {REPORTS} while rank 0 waited ")
    assert inspect.getsourcefile(sum_over_ranks) in cause.message
    assert isinstance(caught.value.__cause__, ReportMismatchError)
    assert caught.value.result is not None
    check_run(caught.value.result.path, error=caught.value, attempts=1)


def test_what_a_returned_rank_has_started_is_finished_for_the_others() -> None:
    """Its last computation is still running when its train function returns."""

    def loop() -> None:
        numbers = np.ones((400, 400), np.float32)
        for _ in range(REPORTS):
            last = [sum_over_ranks(1.0), jax.jit(lambda x: x @ x)(numbers)]
        if train.get_context().get_world_rank() == 0:
            last = [sum_over_ranks(2.0), *last]
            train.report({"sum": last[0]})
        else:
            sum_over_ranks(2.0)

    result = trainer(loop, jax_config=JaxConfig(cpu_devices_per_worker=2)).fit()
    assert result.metrics is not None
    assert result.metrics["sum"] == 4


def test_ranks_that_do_not_wait_for_the_returned_one_finish(tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        sum_over_ranks(1.0)
        train.report({})
        marks = Marks(config["marks"])
        if train.get_context().get_world_rank() == 0:  # the one with the coordination service
            process = JaxProcess.here()
            let_go = process._let_go
            process._let_go = lambda: (let_go(), marks.open_gate("left"))  # type: ignore[method-assign]
            return
        marks.pass_gate("left")
        assert float(jax.jit(lambda x: x.sum())(np.ones(3))) == 3

    result = trainer(loop, workers=3, marks=str(tmp_path)).fit()
    assert result.error is None
    assert not result.warnings


def test_only_connections_of_the_ranks_among_themselves_are_closed() -> None:
    """Not those to the coordination service, which ranks need until all have returned."""
    process = JaxProcess(gloo_addresses=["127.4.5.6"], coordinator_port=4000)
    assert process._is_gloos(("127.0.0.1", 1), ("127.4.5.6", 2))
    assert process._is_gloos(("127.4.5.6", 1), ("127.0.0.1", 2))
    assert not process._is_gloos(("127.0.0.1", 1), ("127.0.0.1", 2))
    assert not process._is_gloos(("127.4.5.6", 1), ("127.4.5.6", 4000))


# -- devices and settings --------------------------------------------------------------------------


class FakeGroup:
    """Workers on two machines, which note what they are called with."""

    def __init__(self, gpus: tuple[str, ...] | None, addresses: tuple[str, ...]) -> None:
        nodes = [Node(str(number), address, f"host{number}", 2) for number, address in enumerate(addresses)]
        self.places = tuple(WorkerPlace(rank, node, rank, 0, 1, gpus) for rank, node in enumerate(nodes))
        self.world_size = len(addresses)
        self.placement = SimpleNamespace(start_timeout_s=60.0)
        self.calls: dict[str, Any] = {}

    def processes(self) -> dict[int, int]:
        return dict.fromkeys(range(self.world_size), os.getpid())  # of other machines

    def execute_each(self, function: Any, arguments: Any, **options: Any) -> None:
        self.calls[function.__name__] = arguments

    def execute_single(self, rank: int, function: Any, *arguments: Any) -> int:
        self.calls[function.__name__] = arguments
        return 1234


@pytest.mark.parametrize(
    ("config", "gpus", "platform", "leaves"),
    [
        (JaxConfig(), None, "cpu", True),
        (JaxConfig(), ("0",), "cuda", False),
        (JaxConfig(platform="rocm"), ("0",), "rocm", False),
        (JaxConfig(platform="tpu"), None, "tpu", False),
    ],
)
def test_resources_decide_on_the_platform_and_machines_on_the_addresses(
    config: JaxConfig, gpus: tuple[str, ...] | None, platform: str, leaves: bool
) -> None:
    group, chosen = FakeGroup(gpus, ("10.0.0.1", "10.0.0.2")), JaxBackend()
    chosen.on_start(group, config)  # type: ignore[arg-type]
    assert group.calls["choose_devices"] == [(platform, 1)] * 2
    assert group.calls["hold_port"] == ("10.0.0.1",)
    assert [each[:3] for each in group.calls["join"]] == [
        ("10.0.0.1:1234", rank, ["10.0.0.1", "10.0.0.2"]) for rank in (0, 1)
    ]
    assert chosen.ranks_leave is leaves


def test_every_start_has_a_port_and_a_loopback_address_of_its_own() -> None:
    firsts = [backend.hold_port("127.0.0.1")]
    held = JaxProcess.here().held_port
    assert held is not None
    JaxProcess._kept.pop(JaxProcess)
    assert backend.hold_port("127.0.0.1") not in firsts
    JaxProcess.end()
    held.close()
    addresses = {backend._unshared_loopback() for _ in range(5)}
    assert len(addresses) > 1
    for address in addresses:
        socket.create_server((address, 0)).close()


def test_tpus_are_asked_for_by_resources() -> None:
    def loop() -> None: ...

    scaling = ScalingConfig(num_workers=2, resources_per_worker={"TPU": 4})
    assert JaxTrainer(loop, scaling_config=scaling).backend_config.platform == "tpu"
    chosen = JaxTrainer(loop, jax_config=JaxConfig(platform="cpu"), scaling_config=scaling)
    assert chosen.backend_config.platform == "cpu"


def test_the_platform_is_jaxs_with_the_cpu_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    changed: dict[str, Any] = {}
    monkeypatch.setattr(jax.config, "update", changed.__setitem__)
    backend.choose_devices("tpu", 1)
    assert changed == {"jax_platforms": "tpu,cpu"}
    backend.choose_devices("cpu", 2)
    assert changed == {"jax_platforms": "cpu", "jax_num_cpu_devices": 2}
    changed.clear()
    monkeypatch.setenv("JAX_PLATFORMS", "mine")
    backend.choose_devices("tpu", 1)
    assert not changed


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"platform": "gpu"}, "'cuda', 'rocm', 'tpu'"),
        ({"cpu_devices_per_worker": 0}, "cpu_devices_per_worker"),
        ({"heartbeat_timeout_s": 0}, "heartbeat_timeout_s"),
    ],
)
def test_wrong_settings_are_told_where_they_are_written(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        JaxConfig(**settings)


def test_gpus_that_the_workers_do_not_have_are_told_before_they_start() -> None:
    with pytest.raises(ConfigError, match=r"use_gpu=True"):
        trainer(lambda: None, jax_config=JaxConfig(platform="cuda")).fit()


def test_what_only_a_part_of_the_program_can_see_comes_with_a_hint() -> None:
    def loop() -> None:
        from tests.train.jax.loops import mesh_of_all, over_rows

        own = np.ones(1, np.float32)
        np.asarray(jax.make_array_from_process_local_data(over_rows(mesh_of_all()), own))

    with pytest.raises(TrainingFailedError) as caught:
        trainer(loop).fit()
    assert "process_allgather" in str(caught.value)
