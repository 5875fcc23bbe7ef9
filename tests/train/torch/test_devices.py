from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from paceline.engine.places import WorkerPlace, drivers_node
from paceline.train.torch import get_device, get_devices
from paceline.train.torch.data_loader import prefetch_to_gpu
from paceline.train.torch.devices import WorkerGpus, assign_gpus, move_to, plan_gpus
from tests.train.torch.conftest import InstallSession

META = torch.device("meta")


def places(*gpus: str | None, nodes: tuple[int, ...] | None = None) -> list[WorkerPlace]:
    return [
        WorkerPlace(
            rank=rank,
            node=drivers_node(),
            node_rank=nodes[rank] if nodes else 0,
            local_rank=rank,
            local_world_size=len(gpus),
            gpus=None if ids is None else tuple(filter(None, ids.split(","))),
        )
        for rank, ids in enumerate(gpus)
    ]


def test_workers_without_gpus() -> None:
    assert plan_gpus(places(None, "")) == [None, None]


def test_a_worker_sees_the_gpus_of_its_machine_and_owns_its_own() -> None:
    assert plan_gpus(places("2", "0")) == [WorkerGpus("2,0", (0,)), WorkerGpus("2,0", (1,))]
    assert plan_gpus(places("0,1", "2,3"))[1] == WorkerGpus("0,1,2,3", (2, 3))
    assert plan_gpus(places("GPU-a", "GPU-a")) == [WorkerGpus("GPU-a", (0,)), WorkerGpus("GPU-a", (0,))]
    assert plan_gpus(places("0", "0", nodes=(0, 1))) == [WorkerGpus("0", (0,)), WorkerGpus("0", (0,))]


def test_get_device(install_session: InstallSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_device() == torch.device("cpu")
    assert get_devices() == [torch.device("cpu")]
    install_session()
    assert get_device() == torch.device("cpu")
    assert get_devices() == [torch.device("cpu")]
    try:
        assign_gpus((1,))
        with pytest.raises(RuntimeError, match=r"GPU.*CUDA.*use_gpu=False"):
            get_device()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert get_device() == torch.device("cuda:1")
        assign_gpus((2, 3))
        assert get_device() == [torch.device("cuda:2"), torch.device("cuda:3")]
    finally:
        assign_gpus(())


@dataclasses.dataclass
class Sample:
    rows: torch.Tensor
    name: str


class OwnMove:
    """Moves itself, as a tokenizer's batch does."""

    moved = False

    def to(self, device: torch.device) -> OwnMove:
        self.moved = True
        return self


def test_move_to_reaches_nested_tensors() -> None:
    one = torch.ones(1)
    batch: dict[str, Any] = {
        "list": [one, (one, "text")],
        "sample": Sample(one, "a"),
        "packed": pack_sequence([one]),
        "n": 3,
    }
    moved = move_to(batch, META)
    assert moved["list"][0].is_meta
    assert moved["list"][1][0].is_meta
    assert moved["list"][1][1] == "text"
    assert moved["sample"].rows.is_meta
    assert moved["sample"].name == "a"
    assert moved["n"] == 3
    assert moved["packed"].data.is_meta
    assert not one.is_meta
    assert not batch["sample"].rows.is_meta
    assert move_to(OwnMove(), META).moved


class FakeCuda:
    """Records what the prefetching loop asks of CUDA; batches move to the meta device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream("copy", self.log))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream("compute", self.log))
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: self.log.append("record"))

    @contextmanager
    def stream(self, stream: Any) -> Any:
        self.log.append(f"copy on {stream.name}")
        yield


@dataclasses.dataclass
class FakeStream:
    name: str
    log: list[str]

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


def test_the_next_batch_is_copied_before_this_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    batches = prefetch_to_gpu(iter([{"x": [torch.ones(1)]}, {"x": [torch.ones(2)]}]), META)
    sizes = []
    for batch in batches:
        assert batch["x"][0].is_meta
        sizes.append(len(batch["x"][0]))
        cuda.log.append("use")
    assert sizes == [1, 2]
    wait = "compute waits for copy"
    assert cuda.log == ["copy on copy", wait, "record", "copy on copy", "use", wait, "record", "use"]
    assert list(prefetch_to_gpu(iter([]), META)) == []
