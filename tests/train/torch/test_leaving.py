"""Ranks that return before the others: those that wait for them fail at once, all others finish."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from paceline import train
from paceline.air import FailureConfig, RunConfig, ScalingConfig
from paceline.air.errors import HangError, ReportMismatchError, TrainingFailedError
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.train.torch import TorchConfig, TorchTrainer, leaving, prepare_model, save_sharded
from paceline.train.torch.backend import ProcessGroupMember
from paceline.train.torch.leaving import GlooSockets

REPORTS = 3


def trainer(loop: Callable[..., Any], *, workers: int = 2, timeout_s: float = 1800, **config: Any) -> TorchTrainer:
    return TorchTrainer(
        loop,
        train_loop_config=config,
        torch_config=TorchConfig(timeout_s=timeout_s),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(hang_timeout_s=None)),
    )


def reduce_all(model: Any, group: Any) -> None:
    dist.all_reduce(torch.ones(1))


def reduce_in_group(model: Any, group: Any) -> None:
    dist.all_reduce(torch.ones(2), group=group)


def go_backward(model: Any, group: Any) -> None:
    model(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize(
    ("step", "called"), [(reduce_all, "all_reduce"), (reduce_in_group, "all_reduce"), (go_backward, "backward")]
)
def test_a_rank_that_waits_for_one_that_has_returned_fails_at_once(
    step: Callable[[Any, Any], None], called: str
) -> None:
    """A16: the time-out of the operation is half an hour."""

    def loop() -> None:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        group = dist.new_group([0, 1])
        for _ in range(REPORTS + (train.get_context().get_world_rank() == 0)):
            step(model, group)
            train.report({})

    with pytest.raises(TrainingFailedError) as caught:
        trainer(loop).fit()
    cause = caught.value.root_cause
    assert cause is not None
    assert (cause.kind, cause.rank) == ("report_mismatch", 1)
    place = f"{__file__}:{inspect.getsourcelines(step)[1] + 1}"
    assert cause.message.startswith(
        f"rank 1 returned after report {REPORTS} while rank 0 waited in {called} at {place}. "
    )
    assert isinstance(caught.value.__cause__, ReportMismatchError)
    assert caught.value.result is not None
    check_run(caught.value.result.path, error=caught.value, attempts=1)


def gather_for_forward(model: Any, leaves: bool) -> None:
    if not leaves:
        model(torch.ones(1, 2))  # waits


def gather_ahead(model: Any, leaves: bool) -> None:
    if not leaves:
        model[0].unshard(async_op=True).wait()  # waits
        model[0].reshard()


def gather_for_backward(model: Any, leaves: bool) -> None:
    loss = model(torch.ones(1, 2)).sum()
    if not leaves:
        loss.backward()  # waits


def clip(model: Any, leaves: bool) -> None:
    model(torch.ones(1, 2)).sum().backward()
    if not leaves:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # waits


def plan_a_save(model: Any, leaves: bool) -> None:
    if not leaves:
        save_sharded(model)  # waits


@pytest.mark.parametrize(
    ("step", "called"),
    [
        (gather_for_forward, "all_gather_single"),
        (gather_ahead, "foreach_all_gather_copy_out"),
        (gather_for_backward, "all_gather_single"),
        (clip, "wait_tensor"),
        (plan_a_save, "gather_object"),
    ],
)
def test_a_rank_that_waits_for_the_part_of_a_sharded_model_fails_at_once(
    step: Callable[[Any, bool], None], called: str
) -> None:
    """A16."""

    def loop() -> None:
        layers = (torch.nn.Linear(2, 2) for _ in range(2))
        model = prepare_model(torch.nn.Sequential(*layers), parallel_strategy="fsdp2")
        for number in range(REPORTS + 1):
            leaves = number == REPORTS and train.get_context().get_world_rank() == 1
            step(model, leaves)
            if leaves:
                return
            train.report({})

    with pytest.raises(TrainingFailedError) as caught:
        trainer(loop).fit()
    cause = caught.value.root_cause
    assert cause is not None
    assert (cause.kind, cause.rank) == ("report_mismatch", 1)
    lines, first = inspect.getsourcelines(step)
    place = f"{__file__}:{first + next(number for number, line in enumerate(lines) if '# waits' in line)}"
    assert cause.message.startswith(
        f"rank 1 returned after report {REPORTS} while rank 0 waited in {called} at {place}. "
    )
    assert caught.value.result is not None
    check_run(caught.value.result.path, error=caught.value, attempts=1)


def test_ranks_that_do_not_wait_for_the_returned_one_finish(tmp_path: Path) -> None:
    """A16: also if they wait for each other meanwhile."""

    def loop(config: dict[str, Any]) -> None:
        rank = train.get_context().get_world_rank()
        others = dist.new_group([0, 2])
        dist.all_reduce(torch.ones(1))
        train.report({})
        marks = Marks(config["marks"])
        if rank == 1:
            sockets = ProcessGroupMember.here().sockets
            shut_down = sockets.shut_down
            sockets.shut_down = lambda: (shut_down(), marks.open_gate("left"))  # type: ignore[method-assign]
            return
        marks.pass_gate("left")
        for _ in range(10):
            dist.all_reduce(torch.ones(1000), group=others)

    result = trainer(loop, workers=3, marks=str(tmp_path)).fit()
    assert result.error is None
    assert not result.warnings


def test_a_collective_operation_that_times_out_names_the_rank_that_never_came(tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        train.report({})
        if train.get_context().get_world_rank() == 1:
            wait_in_vain(config["marks"])
        dist.all_reduce(torch.ones(1))

    def wait_in_vain(marks: str) -> None:
        Marks(marks).pass_gate("never")

    with pytest.raises(TrainingFailedError) as caught:
        trainer(loop, timeout_s=1, marks=str(tmp_path)).fit()
    cause = caught.value.root_cause
    assert cause is not None
    assert (cause.kind, cause.rank) == ("hang", 1)
    assert cause.message.startswith("a collective operation timed out: rank 1 is at ")
    assert "rank 0 waits in all_reduce at " in cause.message
    assert "in wait_in_vain" in cause.traceback
    assert isinstance(caught.value.__cause__, HangError)


def test_only_the_sockets_of_gloo_are_shut_down_and_only_for_sending() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    pairs: list[tuple[socket.socket, socket.socket]] = []

    def connect(*_: Any, **__: Any) -> int:
        pairs.append((socket.create_connection(listener.getsockname()), listener.accept()[0]))
        return len(pairs)

    module = SimpleNamespace(_new_process_group_helper=connect)
    sockets = GlooSockets()
    connect()  # The user's own.
    sockets.watch(module)
    sockets.watch(module)
    assert module._new_process_group_helper(2, 0, [], "gloo") == 2
    assert module._new_process_group_helper(2, 0, [], backend="nccl") == 3
    closed = module._new_process_group_helper(2, 0, [], "gloo")
    for end in pairs[closed - 1]:
        end.close()
    reused = os.pipe()
    try:
        pairs[1][0].sendall(b"before")
        sockets.shut_down()
        for ours, theirs in (pairs[0], pairs[2]):
            ours.sendall(b"still")
            assert theirs.recv(10) == b"still"
        ours, theirs = pairs[1]
        assert theirs.recv(10) == b"before", "what was sent arrives"
        assert theirs.recv(10) == b"", "and then comes the end"
    finally:
        for descriptor in reused:
            os.close(descriptor)
        for end in (listener, *(end for pair in pairs for end in pair)):
            end.close()


def test_a_connection_that_gloo_closes_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of Gloo may close it after the sockets were listed."""
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    monkeypatch.setattr(leaving, "open_sockets", lambda: {reader: 1})
    sockets = GlooSockets()
    sockets._opened.update({reader: 1}.items())
    sockets.shut_down()
