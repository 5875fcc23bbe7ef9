"""Sharded models and their checkpoints, with real workers."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from paceline import train
from paceline.air import Checkpoint, FailureConfig, Result
from paceline.air.errors import CheckpointCorruptError, CheckpointError, TrainingFailedError
from paceline.air.manifest import read_manifest
from paceline.train.torch import (
    TorchCheckpoint,
    TorchPredictor,
    accelerate,
    backward,
    load_sharded,
    prepare_model,
    prepare_optimizer,
    save_sharded,
)
from paceline.train.torch.sharded_files import frame_of, memory_of
from tests.train.torch.sharded_loops import fit, losses, network, train_network, train_with_unused_layer

STEPS = 5


@functools.cache
def undisturbed() -> tuple[float, ...]:
    """The losses of a run of two workers."""
    return tuple(losses(fit(train_network, train_loop_config={"steps": STEPS})))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two workers, after three steps."""
    result = fit(train_network, train_loop_config={"steps": 3})
    assert result.checkpoint is not None
    place = tmp_path_factory.mktemp("saved") / "checkpoint"
    shutil.copytree(str(result.checkpoint.path), place)
    return place


@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_any_number_of_workers_continues(saved: Path, num_workers: int, strategy: str) -> None:
    result = fit(
        train_network,
        num_workers,
        train_loop_config={"steps": STEPS, "strategy": strategy},
        resume_from_checkpoint=TorchCheckpoint.from_directory(saved),
    )
    assert losses(result) == pytest.approx(undisturbed()[3:], rel=1e-5)


def test_each_rank_writes_its_own_part(saved: Path) -> None:
    manifest = read_manifest(saved)
    sizes = [manifest.files[f"__{rank}_0.distcp"].size for rank in (0, 1)]
    assert max(sizes) < 2 * min(sizes)
    assert manifest.facts["world_size"] == 2
    Checkpoint.from_directory(saved).verify()


@pytest.mark.parametrize("async_save", [False, True])
def test_a_failed_attempt_continues(async_save: bool) -> None:
    result = fit(
        train_network,
        checkpoints={"async_save": async_save, "num_to_keep": 2},
        train_loop_config={"steps": STEPS, "fail_at": 3, "meta": True},
        run_config={"failure_config": FailureConfig(max_failures=1)},
    )
    assert len(result.metrics_dataframe) == STEPS
    assert losses(result) == pytest.approx(undisturbed(), rel=1e-5)
    assert len(list(Path(result.path).glob("checkpoint_*"))) == 2
    assert not list(Path(result.path).glob(".*tmp*"))


@pytest.mark.parametrize("fail_at", [0, 2])
def test_saving_changes_nothing_in_the_optimizer(fail_at: int) -> None:
    """Neither before its first step, nor for a layer that it has never updated."""
    alone = fit(train_with_unused_layer, train_loop_config={"steps": 4, "saves": False})
    retries = {"failure_config": FailureConfig(max_failures=1)}
    config = {"steps": 4, "saves": True, "fail_at": fail_at}
    continued = fit(train_with_unused_layer, train_loop_config=config, run_config=retries)
    rows = continued.metrics_dataframe
    assert losses(continued) == losses(alone)
    assert continued.metrics["states"] == alone.metrics["states"] == 2
    resumed = rows["states"].iloc[2 * fail_at + 1]
    assert resumed == (0 if fail_at == 0 else 2), "after the resume, it knows of what it had used before"


def test_scores_decide_which_are_kept() -> None:
    def loop() -> None:
        model = prepare_model(nn.Linear(4, 4), parallel_strategy="fsdp2")
        for loss in (3.0, 1.0, 2.0, 4.0):
            train.report({"loss": loss}, checkpoint=save_sharded(model))

    kept = {"num_to_keep": 2, "checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"}
    result = fit(loop, checkpoints=kept)
    assert [row["loss"] for _, row in result.best_checkpoints] == [2.0, 1.0]
    for checkpoint, _ in result.best_checkpoints:
        assert load_sharded(checkpoint, nn.Linear(4, 4)) == {}


def test_one_process_has_the_whole_model(saved: Path) -> None:
    checkpoint = TorchCheckpoint.from_directory(saved)
    model = checkpoint.get_model(network())
    again = network()
    extra = load_sharded(str(saved), again)
    assert extra["step"] == 2
    assert extra["random"].dtype is torch.uint8
    by_dcp = {"model": network().state_dict()}
    with pytest.warns(UserWarning, match="in a single process"):
        dcp.load(by_dcp, checkpoint_id=saved)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        assert torch.equal(value, by_dcp["model"][name])
    assert checkpoint.to_dict()["model"].keys() == model.state_dict().keys()
    rows = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    predicted = TorchPredictor.from_checkpoint(checkpoint, network()).predict(rows)
    with torch.inference_mode():
        assert torch.allclose(torch.as_tensor(predicted["predictions"]), model.eval()(torch.as_tensor(rows)))


def test_a_checkpoint_that_torch_has_written_is_loaded(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, state = get_state_dict(model, optimizer)
    with pytest.warns(UserWarning, match="in a single process"):
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path / "theirs")
    loaded = network()
    assert load_sharded(str(tmp_path / "theirs"), loaded, torch.optim.AdamW(loaded.parameters())) == {}
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])


def test_a_file_that_is_needed_must_be_as_it_was_committed(saved: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    with open(copy / "__1_0.distcp", "r+b") as part:
        part.seek(-2000, os.SEEK_END)
        part.write(b"damage")
    with pytest.raises(CheckpointCorruptError, match=r"__1_0\.distcp"):
        load_sharded(str(copy), network())
    (copy / "__1_0.distcp").unlink()
    with pytest.raises(CheckpointCorruptError, match=r"__1_0.distcp.*missing"):
        TorchCheckpoint.from_directory(copy).get_model(network())


def test_what_does_not_fit_is_said(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"does not fit the model.*Missing key.*model\.3\.0\.weight"):
        load_sharded(str(saved), network(layers=4))
    with pytest.raises(CheckpointError, match=r"does not fit the model.*[Ss]ize"):
        load_sharded(str(saved), network(width=8))
    other = TorchCheckpoint.from_state_dict({"weight": torch.ones(1)}).to_directory(tmp_path / "other")
    with pytest.raises(CheckpointError, match="not a sharded checkpoint"):
        load_sharded(other, network())

    def loop() -> None:
        train.report({}, checkpoint=save_sharded(prepare_model(nn.Linear(2, 2))))

    model = nn.Linear(2, 2)
    checkpoint = fit(loop).checkpoint
    assert checkpoint is not None
    with pytest.raises(CheckpointError, match="holds no optimizer"):
        load_sharded(checkpoint, model, torch.optim.SGD(model.parameters()))


def fails(loop: Any, match: str, **arguments: Any) -> None:
    with pytest.raises(TrainingFailedError, match=match):
        fit(loop, **arguments)


def test_misuse_is_said_at_the_users_line() -> None:
    def in_memory() -> None:
        train.report({}, checkpoint=save_sharded(nn.Linear(2, 2)))

    fails(in_memory, r"SessionMisuseError: .*num_to_keep=0", checkpoints={"num_to_keep": 0})

    def not_plain() -> None:
        save_sharded(nn.Linear(2, 2), extra={"ok": 1, "loss": nn.CrossEntropyLoss()})

    fails(not_plain, r"ConfigError: .*'loss'.*CrossEntropyLoss")

    def left_out() -> None:
        checkpoint = save_sharded(nn.Linear(2, 2))
        train.report({}, checkpoint=checkpoint if train.get_context().get_world_rank() == 0 else None)

    fails(left_out, r"rank 1 did not take part in report 1.*sharded")

    def different() -> None:
        save_sharded(nn.Linear(2, 2 + train.get_context().get_world_rank(), bias=False))

    fails(different, r"CheckpointError: .*model\.weight.*\[2, 2\].*rank 0.*\[3, 2\].*rank 1")

    def outside() -> None:
        prepare_model(nn.Linear(2, 2), parallel_strategy="fsdp2", parallel_strategy_kwargs={"auto_wrap_policy": None})

    fails(outside, r"ConfigError: .*'auto_wrap_policy'.*reshard_after_forward")


def test_a_function_can_shard_the_model() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def shard(model: nn.Module, mesh: Any, mp_policy: Any) -> None:
        fully_shard(model.get_submodule("0"), mesh=mesh, mp_policy=mp_policy)

    def loop() -> None:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
        model = prepare_model(network(), parallel_strategy=shard, parallel_strategy_kwargs={"mp_policy": policy})
        seen: list[Any] = []
        model.get_submodule("0.1").register_forward_hook(lambda module, given, out: seen.append(out.dtype))
        whole = sum(parameter.numel() for parameter in model.parameters())
        mine = sum(getattr(each, "_local_tensor", each).numel() for each in model.parameters())
        model(torch.ones(4, 16))
        train.report({"whole": whole, "mine": mine, "dtype": str(seen[0])})

    metrics = fit(loop).metrics
    assert metrics is not None
    first = 16 * 16 + 16
    assert metrics["whole"] - metrics["mine"] == first // 2
    assert metrics["dtype"] == "torch.bfloat16"


def test_every_layer_is_sharded_and_starts_alike_for_any_number_of_workers() -> None:
    def loop() -> None:
        torch.manual_seed(0)
        with torch.device("meta"):
            model = network()
        model = prepare_model(model, parallel_strategy="fsdp2")
        from torch.distributed.fsdp import FSDPModule

        layers = sum(isinstance(module, FSDPModule) for module in model.modules())
        train.report({"layers": layers}, checkpoint=save_sharded(model))

    results = [fit(loop, num_workers) for num_workers in (1, 2)]
    models = [TorchCheckpoint.from_checkpoint(_checkpoint(each)).get_model(network()) for each in results]
    assert [(each.metrics or {})["layers"] for each in results] == [1 + 5] * 2
    torch.manual_seed(0)
    models.append(network())
    for name, value in models[0].state_dict().items():
        assert torch.equal(value, models[1].state_dict()[name]), name
        assert torch.equal(value, models[2].state_dict()[name]), f"{name} is not as the constructor makes it"


def _checkpoint(result: Result) -> Checkpoint:
    assert result.checkpoint is not None
    return result.checkpoint


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_mixed_precision_and_accumulation(strategy: str) -> None:
    """The scaler's steps of a new optimizer, which loading makes, must not be scaled ones."""

    def loop(config: dict[str, Any]) -> None:
        from paceline.train.torch.loop import Chosen

        accelerate(amp=True)
        accelerator = Chosen.here().accelerator
        assert accelerator is not None
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        torch.manual_seed(0)
        model = prepare_model(network(), parallel_strategy=config["strategy"])
        optimizer = prepare_optimizer(torch.optim.AdamW(model.parameters(), 1e-2))
        checkpoint = train.get_checkpoint()
        step = 0 if checkpoint is None else load_sharded(checkpoint, model, optimizer)["step"]
        for number in range(step, 4):
            for part in range(2):
                outputs = model(torch.randn(4, 16, generator=torch.Generator().manual_seed(10 * number + part)))
                backward(outputs.float().pow(2).mean() / 2)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            optimizer.step()
            optimizer.zero_grad()
            values = {"norm": float(getattr(norm, "full_tensor", lambda norm=norm: norm)())}
            train.report(values, checkpoint=save_sharded(model, optimizer, {"step": number + 1}))

    whole = fit(loop, train_loop_config={"strategy": strategy}, checkpoints={"num_to_keep": 4})
    norms = list(whole.metrics_dataframe["norm"])
    second = fit(loop, train_loop_config={"strategy": strategy}, resume_from_checkpoint=whole.best_checkpoints[1][0])
    assert list(second.metrics_dataframe["norm"]) == pytest.approx(norms[2:], rel=1e-5)


def test_a_preprocessor_and_positions_travel_with_the_parts() -> None:
    from paceline.data import from_items
    from paceline.data.preprocessors import StandardScaler

    def loop() -> None:
        shard = train.get_dataset_shard("train")
        model = prepare_model(nn.Linear(1, 1), parallel_strategy="fsdp2")
        for _ in shard.iter_torch_batches(batch_size=2):
            train.report({}, checkpoint=save_sharded(model))

    data = from_items([{"x": float(number)} for number in range(8)])
    checkpoint = _checkpoint(fit(loop, datasets={"train": data}, preprocessor=StandardScaler(["x"])))
    assert checkpoint.get_preprocessor().stats_ == StandardScaler(["x"]).fit(data).stats_
    assert checkpoint.data_positions is not None


def test_at_most_two_snapshots_are_under_way() -> None:
    """Storing is held up from outside: the third save waits, and the model as it was then is what arrives."""

    def loop(config: dict[str, Any]) -> None:
        from paceline.train.torch import sharded_saving

        held = threading.Event()
        write, taken = sharded_saving.ShardedPart.write_files, [0]
        snapshot = sharded_saving.ShardedPart.snapshot

        def write_later(self: Any, *arguments: Any, **named: Any) -> None:
            assert held.wait(60)
            write(self, *arguments, **named)

        def count(self: Any) -> Any:
            taken[0] += 1
            return snapshot(self)

        sharded_saving.ShardedPart.write_files = write_later  # type: ignore[method-assign]
        sharded_saving.ShardedPart.snapshot = count  # type: ignore[method-assign]
        model = prepare_model(nn.Linear(4, 4, bias=False), parallel_strategy="fsdp2")
        seen = []
        for step in range(3):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(step)
            if step == 2:
                threading.Timer(0.2, held.set).start()
                seen.append(taken[0])
            train.report({"step": step, "seen": seen, "held": held.is_set()}, checkpoint=save_sharded(model))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(-1)
        assert held.is_set()

    result = fit(loop, train_loop_config={}, checkpoints={"async_save": True})
    assert (result.metrics or {})["seen"] == [2]
    assert (result.metrics or {})["held"] is False  # the metrics are made before report() waits
    for step, (checkpoint, _) in enumerate(result.best_checkpoints):
        weight = TorchCheckpoint.from_checkpoint(checkpoint).get_model(nn.Linear(4, 4, bias=False)).weight
        assert torch.equal(weight, torch.full((4, 4), float(step)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (7, 9)])
def test_a_framed_tensor_is_what_torch_saves(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = (torch.randn(shape) * 10).to(dtype).detach()
    frame = frame_of(shape, dtype)
    content = frame.before + bytes(memory_of(tensor)) + frame.after
    stream = io.BytesIO()
    torch.save(tensor, stream)
    assert len(content) == frame.length == len(stream.getvalue())
    loaded = torch.load(io.BytesIO(content), weights_only=True)
    assert loaded.dtype is dtype
    assert torch.equal(loaded, tensor)


class Sings:
    """Touches a file when it is unpickled."""

    def __init__(self, song: Path) -> None:
        self.song = song

    def __reduce__(self) -> Any:
        return (os.system, (f"touch '{self.song}'",))


@pytest.fixture
def unguarded(saved: Path, tmp_path: Path) -> Path:
    """A copy without a manifest, as others may give it to somebody."""
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    (copy / "MANIFEST.json").unlink()
    return copy


@pytest.mark.parametrize("where", ["whole", "planner_data", "storage_data", "storage_meta"])
def test_metadata_runs_no_code(unguarded: Path, tmp_path: Path, where: str) -> None:
    song = tmp_path / "song"
    metadata = pickle.loads((unguarded / ".metadata").read_bytes())
    evil: Any = Sings(song)
    if where == "whole":
        metadata = evil
    else:
        setattr(metadata, where, {"model.0.weight": evil})
    (unguarded / ".metadata").write_bytes(pickle.dumps(metadata))
    for load in (lambda: load_sharded(str(unguarded), network()), lambda: _get_model(unguarded)):
        with pytest.raises(CheckpointError, match=r"posix\.system.*trust=True"):
            load()
    assert not song.exists()
    with contextlib.suppress(Exception):  # whatever PyTorch says of it
        load_sharded(str(unguarded), network(), trust=True)
    assert song.exists()


def _get_model(place: Path) -> None:
    TorchCheckpoint.from_directory(place).get_model(network())


def test_entries_run_no_code(tmp_path: Path) -> None:
    song = tmp_path / "song"
    model = network()
    sings = Sings(song)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, state = get_state_dict(model, optimizer)
    state["param_groups"][0]["lr"] = sings
    with pytest.warns(UserWarning, match="in a single process"):
        dcp.save({"model": {**weights, "0.0.bias": sings}, "optimizer": state}, checkpoint_id=tmp_path / "theirs")
    for load in (
        lambda: load_sharded(str(tmp_path / "theirs"), model, optimizer),
        lambda: _get_model(tmp_path / "theirs"),
    ):
        with pytest.raises(CheckpointError, match=r"neither a tensor nor a plain value"):
            load()
    assert not song.exists()


def test_a_place_outside_of_the_checkpoint_is_refused(unguarded: Path, tmp_path: Path) -> None:
    shutil.copy(unguarded / "__1_0.distcp", tmp_path / "outside")
    metadata = pickle.loads((unguarded / ".metadata").read_bytes())
    for entry in metadata.storage_data.values():
        entry.relative_path = "../outside"
    (unguarded / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"not inside the checkpoint"):
        _get_model(unguarded)


def test_damaged_metadata_is_damage(unguarded: Path) -> None:
    content = (unguarded / ".metadata").read_bytes()
    (unguarded / ".metadata").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointCorruptError, match="metadata is damaged"):
        _get_model(unguarded)


def train_with_early_optimizer() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    prepare_model(model, parallel_strategy="fsdp2")
    optimizer.step()


def train_without_sharding() -> None:
    prepare_model(network(), parallel_strategy=lambda model, mesh: None)


def save_with_other_optimizer() -> None:
    model = prepare_model(network(), parallel_strategy="fsdp2")
    save_sharded(model, torch.optim.AdamW(network().parameters()))


def save_with_values_for_an_optimizer() -> None:
    save_sharded(prepare_model(network(), parallel_strategy="fsdp2"), {"step": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (train_with_early_optimizer, "already holds the old ones and would train nothing"),
        (train_without_sharding, "the function sharded nothing"),
        (save_with_other_optimizer, "holds parameters that are not those of the model"),
        (save_with_values_for_an_optimizer, "take an optimizer, or several, after the model, not 'step'"),
    ],
)
def test_what_would_train_or_save_nothing_is_refused(loop: Any, said: str) -> None:
    with pytest.raises(TrainingFailedError, match=said):
        fit(loop)


def test_a_smaller_model_does_not_take_a_part_of_the_weights(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds weights that the model does not have: 2.0.weight and"):
        load_sharded(saved, nn.Sequential(*[network()[number] for number in (0, 1)]))
