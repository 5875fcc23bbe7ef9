from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from paceline.engine.base import Placement, WorkerGroup, WorkerRequest
from paceline.engine.places import Node, drivers_node, lay_out
from paceline.train.torch import TorchConfig, backend
from paceline.train.torch.backend import TorchBackend
from tests.descriptors import open_descriptors


class RecordingGroup:
    """Notes what a backend asks of its workers; answers from a table."""

    def __init__(
        self,
        gpus: Sequence[str],
        answers: dict[Callable[..., Any], Any] | None = None,
        nodes: Sequence[Node] | None = None,
    ) -> None:
        self.calls: list[tuple[Callable[..., Any], int | None, tuple[Any, ...]]] = []
        self.answers = {backend.enter: True, **(answers or {})}
        self.timeouts: dict[Callable[..., Any], float] = {}
        self.placement = Placement("test", tuple(WorkerRequest(rank, "", "") for rank in range(len(gpus))))
        self.placement = dataclasses.replace(self.placement, start_timeout_s=123.0)
        self.world_size = len(gpus)
        self.places = [
            dataclasses.replace(place, gpus=tuple(ids.split(",")) if ids else None)
            for place, ids in zip(lay_out(self.placement, nodes or [drivers_node()] * len(gpus)), gpus, strict=True)
        ]

    def execute(self, fn: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
        self.calls.append((fn, None, args))
        self.timeouts[fn] = timeout
        return [self.answers.get(fn)] * self.world_size

    def execute_single(self, rank: int, fn: Callable[..., Any], *args: Any) -> Any:
        self.calls.append((fn, rank, args))
        return self.answers.get(fn)

    def execute_each(self, fn: Callable[..., Any], arguments: Sequence[Sequence[Any]]) -> list[Any]:
        return [self.execute_single(rank, fn, *of_rank) for rank, of_rank in enumerate(arguments)]

    def called(self, fn: Callable[..., Any]) -> list[tuple[Any, ...]]:
        return [args for called, _, args in self.calls if called is fn]


def start(group: RecordingGroup, **config: Any) -> RecordingGroup:
    TorchBackend().on_start(cast(WorkerGroup, group), TorchConfig(**config))
    return group


def test_workers_meet_in_a_memory_file_that_the_driver_lets_go() -> None:
    before = open_descriptors()
    group = start(RecordingGroup(["", ""]), timeout_s=9)
    paths = {path for _, _, path in group.called(backend.enter)}
    assert len(paths) == 1
    assert paths.pop().startswith(f"/proc/{os.getpid()}/fd/")
    assert group.called(backend.listen) == []
    assert group.called(backend.join) == [("gloo", 9)]
    assert not open_descriptors() - before


def test_joining_may_take_as_long_as_the_start_may() -> None:
    assert start(RecordingGroup(["", ""])).timeouts[backend.join] == 123.0


def test_rank_0_hosts_the_store_where_the_memory_file_cannot_be_opened() -> None:
    listening: dict[Callable[..., Any], Any] = {backend.listen: 4321}
    for group in (
        start(RecordingGroup(["", ""], {backend.enter: False, **listening})),
        start(RecordingGroup(["", ""], listening), init_method="tcp"),
    ):
        (environment, _, path) = group.called(backend.enter)[-1]
        assert path is None
        assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("127.0.0.1", "4321")
        assert len(group.called(backend.listen)) == 1


def test_gpus_decide_the_backend_and_the_variables() -> None:
    group = start(RecordingGroup(["3", "1"]))
    assert group.called(backend.join) == [("nccl", 1800)]
    for rank, (environment, own, _) in enumerate(group.called(backend.enter)):
        assert environment["CUDA_VISIBLE_DEVICES"] == "3,1"
        assert environment["ACCELERATE_TORCH_DEVICE"] == f"cuda:{rank}"
        assert environment["ACCELERATE_USE_CPU"] == "false"
        assert own == (rank,)
    assert start(RecordingGroup(["3", "1"]), backend="gloo").called(backend.join) == [("gloo", 1800)]
    assert start(RecordingGroup(["3", ""])).called(backend.join) == [("gloo", 1800)]
    (environment, _, _) = start(RecordingGroup([""])).called(backend.enter)[0]
    assert (environment["ACCELERATE_TORCH_DEVICE"], environment["ACCELERATE_USE_CPU"]) == ("cpu", "true")


def test_gloo_is_bound_to_the_loopback_interface_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    (environment, _, _) = start(RecordingGroup([""])).called(backend.enter)[0]
    assert environment["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")  # as the worker has it
    backend.enter({"GLOO_SOCKET_IFNAME": "lo"}, (), None)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"


def test_on_other_machines_rank_0_hosts_the_store_at_its_address() -> None:
    nodes = [Node("a", "10.0.0.1", "a", 1), Node("b", "10.0.0.2", "b", 1)]
    answers = {backend.listen: 4321, backend.interface_for: "eth0"}
    group = start(RecordingGroup(["0", "0"], answers, nodes))
    assert group.called(backend.listen) == [("10.0.0.1",)]
    addresses = ["10.0.0.1", "10.0.0.2"]
    assert group.called(backend.interface_for) == [(address, addresses) for address in addresses]
    for environment, _, path in group.called(backend.enter):
        assert path is None
        assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("10.0.0.1", "4321")
        assert environment["GLOO_SOCKET_IFNAME"] == "eth0"
        assert environment["NCCL_SOCKET_IFNAME"] == "=eth0"
        assert (environment["LOCAL_RANK"], environment["CUDA_VISIBLE_DEVICES"]) == ("0", "0")
    assert [environment["NODE_RANK"] for environment, _, _ in group.called(backend.enter)] == ["0", "1"]
    assert group.called(backend.join) == [("nccl", 1800)]


def test_what_the_user_chose_for_nccl_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib")  # as the worker has it
    backend.enter({"NCCL_SOCKET_IFNAME": "=eth0"}, (), None)
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib"


def test_all_workers_on_one_other_machine_meet_at_its_loopback_address() -> None:
    answers = {backend.listen: 4321, backend.interface_for: "lo"}
    group = start(RecordingGroup(["", ""], answers, [Node("a", "10.0.0.1", "a", 2)] * 2))
    assert group.called(backend.listen) == [("127.0.0.1",)]
    for environment, _, path in group.called(backend.enter):
        assert (environment["MASTER_ADDR"], environment["GLOO_SOCKET_IFNAME"], path) == ("127.0.0.1", "lo", None)
        assert "NCCL_SOCKET_IFNAME" not in environment


def test_a_single_worker_on_another_machine_gets_a_port_of_that_machine() -> None:
    answers = {backend.free_port: 4321, backend.interface_for: None}
    group = start(RecordingGroup([""], answers, [Node("a", "10.0.0.1", "a", 1)]))
    ((environment, _, path),) = group.called(backend.enter)
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"], path) == ("127.0.0.1", "4321", None)
    assert "GLOO_SOCKET_IFNAME" not in environment
