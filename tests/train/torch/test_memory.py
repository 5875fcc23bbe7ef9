"""Estimates of memory, compared with what real workers hold."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline import train
from paceline.air import RunConfig, ScalingConfig
from paceline.air.errors import ConfigError
from paceline.train.torch import RankMemory, TorchTrainer, estimate_memory, prepare_model
from tests.train.torch.sized_models import Nested, Tied, held_by

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adafactor": torch.optim.Adafactor,
}


def on_workers(train_func: Callable[[], None], num_workers: int = 2) -> list[dict[str, Any]]:
    """What each rank reports."""
    result = TorchTrainer(
        train_func, scaling_config=ScalingConfig(num_workers=num_workers), run_config=RunConfig(verbose=0)
    ).fit()
    return [result.rank_metrics[rank] for rank in range(num_workers)]


def parts(rank: RankMemory) -> dict[str, int]:
    return {name: getattr(rank, name) for name in ("parameters", "buffers", "gradients", "optimizer")}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ddp_holds_exactly_what_was_estimated(optimizer: str) -> None:
    def train_func() -> None:
        model = prepare_model(Tied())
        updates = OPTIMIZERS[optimizer](model.parameters())
        for _ in range(2):
            updates.zero_grad()
            model(torch.arange(6)).sum().backward()
            updates.step()
        buckets = str(model._get_ddp_logging_data()["bucket_sizes"])
        train.report({**held_by(model, updates), "buckets": sum(int(each) for each in buckets.split(","))})

    estimate = estimate_memory(Tied(), optimizer, world_sizes=[2]).of("ddp", 2)
    for found in on_workers(train_func):
        assert {name: found[name] for name in parts(estimate)} == parts(estimate)
        assert found["buckets"] == estimate.working


@pytest.mark.parametrize("optimizer", ["adamw", "sgd-momentum"])
def test_fsdp2_holds_exactly_what_was_estimated(optimizer: str) -> None:
    check_fsdp2(Tied, 2, optimizer)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 3])
def test_fsdp2_with_other_numbers_of_workers(num_workers: int) -> None:
    check_fsdp2(Tied, num_workers)


@pytest.mark.parametrize("model", [Tied, pytest.param(Nested, marks=pytest.mark.slow)])
def test_fsdp2_with_mixed_precision(model: type[nn.Module]) -> None:
    check_fsdp2(model, 2, mixed_precision="bf16")


@pytest.mark.slow
def test_fsdp2_with_layers_inside_of_layers() -> None:
    check_fsdp2(Nested, 3)


def check_fsdp2(
    kind: type[nn.Module], num_workers: int, optimizer: str = "adamw", mixed_precision: str | None = None
) -> None:
    def train_func() -> None:
        from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
        from torch.distributed.fsdp import MixedPrecisionPolicy

        if not torch.distributed.is_initialized():  # one worker
            torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = sharded(kind(), **({"mp_policy": policy} if mixed_precision else {}))
        updates = OPTIMIZERS[optimizer](model.parameters())
        one_step(model)
        updates.step()
        with (tracker := FSDPMemTracker(model, updates)):
            one_step(model)  # gradients add up: all of them are there at the fullest moment
        (peak,) = tracker.get_tracker_snapshot("peak").values()
        train.report({**held_by(model, updates), "peak": peak["Total"] - peak["Activation"]})

    estimate = estimate_memory(kind(), optimizer, world_sizes=[num_workers], mixed_precision=mixed_precision)
    rank = estimate.of("fsdp2", num_workers)
    ranks = on_workers(train_func, num_workers)
    assert {name: ranks[0][name] for name in parts(rank)} == parts(rank)
    assert all(found[name] <= size for found in ranks for name, size in parts(rank).items())
    # The peak has gradients of activations, and the tracker sees what waits for the garbage collector.
    assert ranks[0]["peak"] == pytest.approx(rank.total, rel=0.08)


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    """As `layers="auto"` says: the members of each list, inner ones first, then the rest."""
    from torch.distributed.fsdp import fully_shard

    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList)]
    for member in [member for each in reversed(lists) for member in each]:
        fully_shard(member, **options)
    fully_shard(model, **options)
    return model


def one_step(model: nn.Module) -> None:
    model(torch.arange(2)).float().sum().backward()


def test_autocast_keeps_the_copies_that_were_estimated() -> None:
    """What is alive before the backward pass: copies of weights, and activations."""
    model = Tied(depth=2)
    full, mixed = (estimate_memory(model, world_sizes=[1], mixed_precision=cast) for cast in (None, "bf16"))
    made = []

    class Copies(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._to_copy.default and args[0].requires_grad and args[0].is_leaf:
                made.append(result.nbytes)
            return result

    with torch.autocast("cpu", dtype=torch.bfloat16), Copies():
        model(torch.arange(2))
    of_norms = sum(2 * each.numel() for block in model.blocks for each in block.norm.parameters())
    assert mixed.of("ddp", 1).working - full.of("ddp", 1).working == sum(made) + of_norms


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_workers_grow_by_what_was_estimated(strategy: str) -> None:
    def build() -> Tied:
        return Tied(width=768, depth=12, words=1000)

    def train_func() -> None:
        # Every block of memory goes back to the system when it is freed: 64 kB and larger ones are mapped.
        assert ctypes.CDLL(None).mallopt(-3, 65536) == 1
        torch.set_num_threads(1)

        def trained(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
            model = prepare_model(model) if strategy == "ddp" else sharded(model)
            updates = torch.optim.AdamW(model.parameters(), foreach=False)
            one_step(model)
            updates.step()
            return model, updates

        trained(Tied())  # libraries load what they need
        gc.collect()
        before = memory_of("VmRSS")
        model, updates = trained(build())
        Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here on
        one_step(model)
        updates.step()
        train.report({"grown": memory_of("VmHWM") - before})

    with torch.device("meta"):
        estimate = estimate_memory(build(), world_sizes=[2]).of(strategy, 2)
    for found in on_workers(train_func):
        assert found["grown"] == pytest.approx(estimate.total, rel=0.05)


def memory_of(name: str) -> int:
    """A figure of the kernel about this process, in bytes."""
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(name))
    return int(line.split()[1]) << 10


def test_a_model_of_any_size_takes_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.device("meta"):
        model = Tied(width=8192, depth=128, words=32_000)
    estimate = estimate_memory(model, memory="80GB", mixed_precision="bf16", world_sizes=[8, 64])
    assert estimate.parameters == 128 * (8 * 8192**2 + 7 * 8192) + 32_000 * 8192 + 8192
    assert estimate.trainable == estimate.parameters - 8192
    assert not estimate.of("ddp", 8).fits
    assert estimate.of("fsdp2", 64).fits
    assert estimate.advice.startswith("Fits with fsdp2 from 64 workers, which leaves ")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_an_own_optimizer_steps_on_a_copy() -> None:
    model = Tied()
    decayed = [each for each in model.parameters() if each.ndim > 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}], lr=0.1)
    one_step(model)
    optimizer.step()
    before = [each.detach().clone() for each in model.parameters()]
    estimate = estimate_memory(model, optimizer, world_sizes=[1]).of("ddp", 1)
    assert estimate.optimizer == held_by(model, optimizer)["optimizer"]
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(int(state["step"]) == 1 for state in optimizer.state.values())
    with pytest.raises(ConfigError, match="not the model's"):
        estimate_memory(Tied(), optimizer)


def test_dtypes_are_those_of_a_converted_model() -> None:
    model = Tied()
    model.register_buffer("count", torch.zeros(4, dtype=torch.int64))
    of_converted = estimate_memory(model.to(torch.bfloat16))
    assert of_converted == estimate_memory(model.to(torch.float32), dtype="bf16")
    assert of_converted.of("ddp", 1).buffers == 2 * 3 * 64 + 8 * 4


def test_gradients_in_buckets_count_once() -> None:
    apart, shared = (
        estimate_memory(Tied(), world_sizes=[2], gradient_as_bucket_view=flag).of("ddp", 2) for flag in (False, True)
    )
    assert (apart.working, shared.working) == (apart.gradients, 0)
    between = (apart.total + shared.total) // 2
    assert "With gradient_as_bucket_view=True ddp needs" in estimate_memory(Tied(), memory=between).advice


def test_layers_decide_what_is_gathered() -> None:
    model = Tied()
    automatic, named, whole = (
        estimate_memory(model, world_sizes=[4], layers=layers).of("fsdp2", 4).working
        for layers in ("auto", ["Block"], None)
    )
    assert automatic == named < whole
    # Gradients, the buffer that is reduced, and this rank's quarter of the result.
    assert whole == pytest.approx(2.25 * estimate_memory(model).of("ddp", 2).gradients, rel=0.01)
    with pytest.raises(ConfigError, match="no layers of class Blok"):
        estimate_memory(model, layers="Blok")


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ("1GB", r"Fits with ddp: with 8 workers it leaves 99\d MB per worker"),
        (2_000_000, r"Fits with fsdp2 from 2 workers, .* ddp needs 3\.\d MB"),
        (800_000, r"Fits with fsdp2 and 32 workers, more than asked for"),
        (600_000, r"Does not fit with more workers either: .* layers gathered at a time\."),
    ],
)
def test_the_advice_names_what_fits(memory: int | str, said: str) -> None:
    estimate = estimate_memory(Tied(), memory=memory, world_sizes=[2, 4, 8])
    assert re.match(said, estimate.advice), estimate.advice


def test_workers_of_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.train.torch.memory_parts.has_gpus", lambda: False)
    monkeypatch.setattr("paceline.train.torch.memory_parts.usable_memory", lambda: 8_000_000)
    estimate = estimate_memory(Tied())
    assert [rank.memory for rank in estimate.ranks[:4]] == [8_000_000, 4_000_000, 2_000_000, 1_000_000]
    assert estimate.advice.startswith("Fits with ddp up to 2 workers")
    monkeypatch.setattr("paceline.train.torch.memory_parts.usable_memory", lambda: 1_000_000)
    assert estimate_memory(Tied()).advice.startswith("Does not fit this machine")
    monkeypatch.setattr("paceline.train.torch.memory_parts.usable_memory", lambda: None)
    unknown = estimate_memory(Tied())
    assert unknown.of("ddp", 2).fits is unknown.of("ddp", 2).headroom is None
    assert unknown.advice.startswith("ddp needs ")


def test_what_cannot_be_estimated_is_refused() -> None:
    model = nn.Linear(3, 3)
    for arguments, said in [
        ({"world_sizes": [0]}, "numbers of workers"),
        ({"world_sizes": []}, "numbers of workers"),
        ({"memory": "24 apples"}, "like '24GiB'"),
        ({"memory": 0}, "positive"),
        ({"dtype": "int3"}, "bf16"),
        ({"mixed_precision": "int3"}, "bf16"),
        ({"optimizer": "adamv"}, "adamw"),
        ({"optimizer": "lbfgs"}, "does not work without data"),
        ({"optimizer": "muon"}, "does not take the parameters"),
    ]:
        with pytest.raises(ConfigError, match=said):
            estimate_memory(model, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lazy module"):
        estimate_memory(nn.LazyLinear(3))
    with pytest.raises(ConfigError, match="no parameters"):
        estimate_memory(nn.ReLU())


def test_notes_name_what_limits_the_estimate() -> None:
    model = nn.Linear(3, 3)
    model.temperature = nn.Parameter(torch.tensor(1.0))
    assert "temperature" in estimate_memory(model).notes[0]
    assert "other shapes" in estimate_memory(Tied(), "adafactor").notes[0]
    frozen = estimate_memory(nn.Linear(3, 3).requires_grad_(False))
    assert (frozen.trainable, frozen.of("ddp", 2).total) == (0, frozen.of("ddp", 2).parameters)
    with pytest.raises(KeyError):
        frozen.of("ddp", 3)


def test_estimates_are_plain_values() -> None:
    estimate = estimate_memory(nn.Linear(3, 3), memory=1000)
    assert dataclasses.asdict(estimate)["ranks"][0]["parameters"] == 48
    assert estimate.of("ddp", 1).headroom == 1000 - 48 - 48 - 2 * (48 + 4)
