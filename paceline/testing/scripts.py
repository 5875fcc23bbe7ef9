"""The training programs of the fault tests: a loop that counts, and things that go wrong in it.

`ScriptPlan` says what to train and what goes wrong where. A test runs a plan in its own process with
`make_trainer(plan).fit()`, or in a driver process that it can kill:
``python -m paceline.testing.scripts plan.json``.

What the loop saves can be checked against the iteration it was saved at, so a checkpoint that is
torn or mixed from two iterations makes the next attempt fail.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig, session
from paceline.air.errors import StopTraining, TrainingFailedError
from paceline.testing.invariants import CANARY, worker_descendants
from paceline.testing.processes import Marks
from paceline.train import BackendConfig, DataParallelTrainer


@dataclass(frozen=True)
class Action:
    """Something that goes wrong just before `iteration` is reported on `rank`."""

    do: str
    iteration: int
    rank: int = 1
    argument: Any = None
    times: int = 1
    """In how many attempts it happens."""


@dataclass(frozen=True)
class ScriptPlan:
    """One run of the counting loop."""

    storage: str
    marks: str
    name: str = "experiment"
    workers: int = 2
    iterations: int = 6
    every: int = 1
    """Save at every n-th iteration; 0 never saves."""
    asks: bool = False
    """Ask should_checkpoint() before every report, and save when it says so, too."""
    payload: int = 1000
    """Bytes in each of the two data files of a checkpoint."""
    actions: tuple[Action, ...] = ()
    restore: str | None = None
    """Continue the run in this trial directory instead of starting one."""
    stop: dict[str, float] | None = None
    verbose: int = 0
    checkpoints: dict[str, Any] = field(default_factory=dict)
    """Arguments of CheckpointConfig."""
    failures: dict[str, Any] = field(default_factory=dict)
    """Arguments of FailureConfig."""

    def continued(self, trial_dir: str | Path) -> ScriptPlan:
        """The same plan, resumed, with nothing going wrong any more."""
        return replace(self, restore=str(trial_dir), actions=())

    def save(self, path: Path) -> Path:
        """Write it for a driver, whose locale may spell the same path in other characters."""
        values = {**asdict(self), "storage": os.fsencode(self.storage).decode("latin-1")}
        path.write_text(json.dumps(values))
        return path

    @classmethod
    def load(cls, path: str | Path) -> ScriptPlan:
        values = json.loads(Path(path).read_text())
        values["storage"] = os.fsdecode(values["storage"].encode("latin-1"))
        values["actions"] = tuple(Action(**action) for action in values["actions"])
        return cls(**values)


def make_trainer(
    plan: ScriptPlan,
    *,
    backend: BackendConfig | None = None,
    loop: Callable[[dict[str, Any]], None] | None = None,
    **run_config: Any,
) -> DataParallelTrainer:
    """The trainer of a plan, with a loop around `counting_loop` if one is given; more of RunConfig by keyword."""
    loop_config = {
        "marks": plan.marks,
        "iterations": plan.iterations,
        "every": plan.every,
        "asks": plan.asks,
        "payload": plan.payload,
        "actions": [asdict(action) for action in plan.actions],
        "access_token": CANARY,
    }
    if plan.restore is not None:
        again: dict[str, Any] = {} if backend is None else {"backend_config": backend}
        return DataParallelTrainer.restore(
            plan.restore, train_loop_per_worker=loop or counting_loop, train_loop_config=loop_config, **again
        )
    return DataParallelTrainer(
        loop or counting_loop,
        train_loop_config=loop_config,
        backend_config=backend,
        scaling_config=ScalingConfig(num_workers=plan.workers),
        run_config=RunConfig(
            name=plan.name,
            storage_path=plan.storage,
            stop=plan.stop,
            checkpoint_config=CheckpointConfig(**plan.checkpoints),
            failure_config=FailureConfig(**plan.failures),
            verbose=plan.verbose,
            **run_config,
        ),
    )


def counting_loop(config: dict[str, Any]) -> None:
    """Count to `iterations`, continuing where the checkpoint says, and tell the marks about it."""
    marks = Marks(config["marks"])
    rank = session.get_world_rank()
    start = saved_iteration(session.get_checkpoint())
    marks.say("started", rank=rank, pid=os.getpid(), after=start)
    try:
        _count(config, marks, rank, start)
    except StopTraining:
        marks.say("stopping", rank=rank)
        raise
    marks.say("returning", rank=rank)


def _count(config: dict[str, Any], marks: Marks, rank: int, start: int) -> None:
    for iteration in range(start + 1, config["iterations"] + 1):
        for action in config["actions"]:
            if (action["rank"], action["iteration"]) == (rank, iteration):
                perform(Action(**action), marks)
        metrics = {"iteration": iteration, "score": score(iteration), "rank": rank}
        is_due = config["asks"] and session.should_checkpoint()
        if is_due or (config["every"] and iteration % config["every"] == 0):
            with tempfile.TemporaryDirectory(dir=marks.directory) as directory:
                write_state(Path(directory), rank, iteration, config["payload"])
                session.report(metrics, checkpoint=Checkpoint.from_directory(directory))
            marks.say("saved", rank=rank, iteration=iteration)
        else:
            session.report(metrics)
        marks.say("reported", rank=rank, iteration=iteration)


def score(iteration: int) -> int:
    """A measure of quality that goes up and down."""
    return iteration * 37 % 101


def write_state(directory: Path, rank: int, iteration: int, payload: int) -> None:
    """Files whose whole content follows from the iteration; one of them belongs to this rank alone."""
    (directory / "nested").mkdir()
    (directory / "state.json").write_text(json.dumps({"iteration": iteration, "payload": payload}))
    (directory / "nested" / "weights.bin").write_bytes(_content(iteration, payload))
    (directory / f"rank_{rank}.bin").write_bytes(_content(iteration + rank, payload))


def saved_iteration(checkpoint: Checkpoint | None) -> int:
    """The iteration a checkpoint was saved at, 0 without one; fails if its files don't belong together."""
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as directory:
        return read_state(Path(directory))


def read_state(directory: Path) -> int:
    state = json.loads((directory / "state.json").read_text())
    iteration, payload = int(state["iteration"]), int(state["payload"])
    assert (directory / "nested" / "weights.bin").read_bytes() == _content(iteration, payload), "torn checkpoint"
    assert (directory / "rank_0.bin").read_bytes() == _content(iteration, payload), "mixed checkpoint"
    return iteration


def _content(iteration: int, payload: int) -> bytes:
    return bytes([iteration % 251]) * payload


def perform(action: Action, marks: Marks) -> None:
    """Let it go wrong, unless it has as often as it should."""
    for time in range(action.times):
        if marks.claim(f"{action.do}-rank{action.rank}-iteration{action.iteration}-{time}"):
            marks.say("action", do=action.do, rank=action.rank, pid=os.getpid())
            ACTIONS[action.do](action.argument)
            return


def _raise(message: str) -> None:
    raise ValueError(message)


def _block(_: None) -> None:
    """In C, deaf to SIGTERM, but without the interpreter's lock."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).sleep(3600)


def _hold_interpreter(_: None) -> None:
    """Whatever signal comes: another thread has to take it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).sleep(3600)


def _allocate(most: int) -> None:
    """Use memory until somebody objects, at most so many bytes."""
    held = []
    for _ in range(0, most, 2**24):
        held.append(b"\x01" * 2**24)
    raise AssertionError(f"{most} bytes were there to be had")


def _allocate_within(limits: dict[str, int]) -> None:
    """The same in an address space that has a limit."""
    resource.setrlimit(resource.RLIMIT_AS, (limits["address_space"], resource.RLIM_INFINITY))
    _allocate(limits["most"])


def _start_daemons(marks_directory: str) -> None:
    """Three kinds of children that outlive a careless parent; each says its pid."""
    marks = Marks(marks_directory)

    def live(kind: str) -> None:
        marks.say("daemon", kind=kind, pid=os.getpid())
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        while True:
            signal.pause()

    if os.fork() == 0:
        live("child")
    if os.fork() == 0:
        os.setsid()
        live("setsid")
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            live("double fork")
        os._exit(0)
    os.waitpid(middle, 0)
    marks.wait("daemon", 3)


ACTIONS: dict[str, Callable[[Any], object]] = {
    "exit": sys.exit,
    "exit at once": os._exit,
    "signal": lambda number: os.kill(os.getpid(), number),
    "segfault": lambda _: ctypes.string_at(0),
    "raise": _raise,
    "hold the interpreter": _hold_interpreter,
    "block": _block,
    "allocate": _allocate,
    "allocate within a limit": _allocate_within,
    "wait": lambda gate_of: Marks(gate_of).pass_gate("worker"),
    "daemons": _start_daemons,
}


def describe(result: Result) -> dict[str, Any]:
    """What a test wants to know of a result of another process, as plain values."""
    return {
        "path": result.path,
        "attempts": result.attempts,
        "iteration": result.metrics.get("training_iteration") if result.metrics else None,
        "checkpoint": result.checkpoint.path if result.checkpoint else None,
    }


def main(plan_path: str) -> None:
    """Run a plan; what came of it is left in the marks, and an error is raised like anybody's."""
    plan = ScriptPlan.load(plan_path)
    marks = Marks(plan.marks)
    try:
        result = make_trainer(plan).fit()
    except KeyboardInterrupt as interruption:
        # In a notebook the driver lives on: the workers must be gone while it is still here.
        assert not worker_descendants()
        reached = getattr(interruption, "result", None)
        marks.say("outcome", outcome="interrupted", **(describe(reached) if reached else {}))
        raise
    except TrainingFailedError as error:
        cause = error.root_cause
        marks.say("outcome", outcome="failed", cause=asdict(cause) if cause else None)
        raise
    marks.say("outcome", outcome="finished", **describe(result))


if __name__ == "__main__":
    main(sys.argv[1])
