"""Sharded training under kills and memory limits."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

from paceline import train
from paceline.air import CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig
from paceline.air.errors import TrainingFailedError
from paceline.air.faults import role
from paceline.testing.invariants import check_run, committed_checkpoints
from paceline.testing.processes import Driver, fault
from paceline.train.torch import TorchTrainer, load_sharded, prepare_model, save_sharded
from tests.faults import sharded_program
from tests.faults.cases import long_run, rounds
from tests.faults.control_groups import ControlGroups
from tests.faults.laboratory import Laboratory
from tests.faults.sharded_program import Program, begin, fill, read_step
from tests.faults.test_every_step import DRIVER_STEPS

# -- kills -----------------------------------------------------------------------------------------


def save_under_fire(config: dict[str, Any]) -> None:
    """In each attempt a timer of the kernel's ends one rank in the middle of one of its saves."""
    attempt = int(role["attempt"])
    dice = random.Random(config["seed"] * 10_000 + attempt)
    rank = dice.randrange(2)
    number, part = dice.randint(2, 4), dice.random()
    dies = attempt < config["kills"] and train.get_context().get_world_rank() == rank
    model, optimizer, step = begin()
    seconds = 0.0
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for count in range(1, 5):
        step += 1
        fill(model, optimizer, step)
        began = time.perf_counter()
        if dies and count == number:
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, part * seconds * 1.5))
        train.report({"step": step}, checkpoint=save_sharded(model, optimizer, {"step": step}))
        seconds = time.perf_counter() - began
    if dies:
        signal.pause()  # with a save in the background, the timer may still be running


@pytest.mark.parametrize("async_save", [False, True])
@pytest.mark.parametrize("kills", [3, long_run(rounds(100), seconds=900)])
def test_a_kill_during_a_save_never_leaves_a_checkpoint_that_loads_wrongly(
    lab: Laboratory, kills: int, async_save: bool
) -> None:
    result = TorchTrainer(
        save_under_fire,
        train_loop_config={"kills": kills, "seed": int(async_save)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(lab.storage),
            verbose=0,
            failure_config=FailureConfig(max_failures=kills),
            checkpoint_config=CheckpointConfig(num_to_keep=2, async_save=async_save),
        ),
    ).fit()
    check_run(result.path, result=result, attempts=kills + 1)
    kept = committed_checkpoints(lab.trial_dir)
    assert len(kept) == 2
    for path in kept:
        read_step(path)


@pytest.mark.slow
@pytest.mark.parametrize("async_save", [False, True])
@pytest.mark.parametrize(("point", "times"), [*DRIVER_STEPS, ("checkpoint_committed", 2)])
def test_run_is_restored_after_its_driver_died_in_a_sharded_save(
    lab: Laboratory, point: str, times: int, async_save: bool
) -> None:
    """A5."""
    program = Program(str(lab.storage), str(lab.marks.directory), 5, {"num_to_keep": 2, "async_save": async_save})
    arguments = ["-m", sharded_program.__name__, str(program.save(lab.root / "program.json"))]
    killer = fault(point, rank="driver", times=times)
    with Driver(arguments, output=lab.root / "driver.txt", env=killer, cwd=lab.root) as driver:
        assert driver.wait() == -signal.SIGKILL, f"the driver never came to {point}"
        check_run(lab.trial_dir, processes=driver.known(), swept=False)
    steps = [read_step(path) for path in committed_checkpoints(lab.trial_dir)]
    reported = max((mark["step"] for mark in lab.marks.read("reported", rank=0)), default=0)
    if not async_save:
        assert max(steps, default=0) >= reported, f"step {reported} was acknowledged, on disk are {steps}"

    result = program.trainer(restore=lab.trial_dir).fit()
    check_run(result.path, result=result, iterations=5)
    (last,) = {lab.marks.read("started", rank=rank)[-1]["after"] for rank in (0, 1)}
    assert last >= max(steps, default=0)
    assert [read_step(path) for path in committed_checkpoints(lab.trial_dir)] == [4, 5]


# -- memory ----------------------------------------------------------------------------------------

WIDTH, LAYERS = 1024, 24
STATE = 16 * LAYERS * WIDTH * (WIDTH + 1)
"""Bytes of the weights, the gradients and both moments."""
LIMIT = int(0.8 * STATE)
M_MMAP_THRESHOLD = -3
GLOBAL_BATCH = 12


@pytest.fixture
def groups() -> Iterator[ControlGroups]:
    groups = ControlGroups()
    yield groups
    groups.remove()


def train_large(config: dict[str, Any]) -> None:
    """With the limit's group of its own for each rank. What the process had before is not counted."""
    import ctypes
    import os

    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)  # else the C library keeps much of what is freed
    context = train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    if config["groups"]:
        Path(config["groups"][rank], "cgroup.procs").write_text(str(os.getpid()))
    torch.manual_seed(0)
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))
    model = prepare_model(model, parallel_strategy="fsdp2")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    start, checkpoint = 0, train.get_checkpoint()
    if checkpoint is not None:
        start = load_sharded(checkpoint, model, optimizer)["step"] + 1
    for step in range(start, config["steps"]):
        rows = torch.randn(GLOBAL_BATCH, WIDTH, generator=torch.Generator().manual_seed(step)).chunk(size)[rank]
        loss = model(rows).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step, rank) == (config.get("dies_at"), 1):
            os.kill(os.getpid(), signal.SIGKILL)
        saved = save_sharded(model, optimizer, {"step": step})
        train.report({"loss": loss.item(), "step": step}, checkpoint=saved, reduce={"loss": "mean"})


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_a_model_too_large_for_one_worker_continues_on_any_number_of_them(
    lab: Laboratory, groups: ControlGroups
) -> None:
    def fit(num_workers: int, *, limited: bool = True, **arguments: Any) -> Result:
        places.extend(str(groups.make(LIMIT)) for _ in range(num_workers if limited else 0))
        return TorchTrainer(
            train_large,
            train_loop_config={
                "steps": 6,
                "groups": places[-num_workers:] if limited else [],
                **arguments.pop("config", {}),
            },
            scaling_config=ScalingConfig(num_workers=num_workers),
            run_config=RunConfig(
                storage_path=str(lab.storage), verbose=0, checkpoint_config=CheckpointConfig(num_to_keep=1)
            ),
            **arguments,
        ).fit()

    places: list[str] = []
    with pytest.raises(TrainingFailedError, match="SIGKILL"):
        fit(1)
    assert groups.killed(Path(places[0]))
    expected = list(fit(2).metrics_dataframe["loss"])
    with pytest.raises(TrainingFailedError) as caught:
        fit(2, config={"dies_at": 3})
    assert caught.value.root_cause is not None
    assert (caught.value.root_cause.rank, caught.value.root_cause.kind) == (1, "signal")
    assert caught.value.result is not None
    start = caught.value.result.checkpoint
    for num_workers, limited in ((3, True), (1, False)):
        result = fit(num_workers, limited=limited, resume_from_checkpoint=start)
        assert list(result.metrics_dataframe["loss"]) == pytest.approx(expected[3:], rel=1e-5)
