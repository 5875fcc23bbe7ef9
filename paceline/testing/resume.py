"""assert_resume_equivalent(): does an interrupted run end like one that was never interrupted?

It trains twice, once with a kill in the middle, and compares every rank's rows and the final checkpoint bit for bit.
If they differ, it trains a third time without interruption, to know whether two such runs are comparable at all, and
then says what the loop forgot.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.air.checks import check_choice, whole_number
from paceline.air.config import CheckpointConfig, FailureConfig
from paceline.air.constants import ADDED_BY_TO_DICT
from paceline.air.errors import ConfigError, TrainingFailedError
from paceline.air.faults import FAULT_VARIABLE, NOTES_VARIABLE
from paceline.engine.places import THREADS_VARIABLES
from paceline.testing.chaos_kit import chaos
from paceline.testing.differences import first_difference, first_file_difference
from paceline.testing.invariants import journal_records
from paceline.testing.resume_observer import FOLDER
from paceline.testing.resume_suspects import Forgotten, Lines, forgotten

if TYPE_CHECKING:
    from paceline.air.result import Result
    from paceline.train.base_trainer import BaseTrainer

_OBSERVER = "paceline.testing.resume_observer.watch"


class ResumeDifferenceError(AssertionError):
    """The interrupted run ended differently."""

    def __init__(self, message: str, first: str, forgot: Sequence[Forgotten]) -> None:
        super().__init__(message)
        self.first = first
        """The first row or array that differs."""
        self.forgot = [each.what for each in forgot]
        """What the loop did not restore, as far as that can be seen: "optimizer", "scheduler", "random state",
        "loader epoch", "shard position", "model", "checkpoint"."""


class NotComparableError(AssertionError):
    """Two uninterrupted runs differ already, or there is nothing to resume from."""


@dataclass(frozen=True)
class _Observed:
    """One run, and what was seen of it."""

    result: Result
    lines: Lines
    """By attempt and rank."""

    @property
    def rows(self) -> dict[tuple[int, int], Mapping[str, Any]]:
        """What counts of each rank: the reports of an attempt up to where the next one started."""
        found = {}
        ends = [*self.starts[1:], None]
        for (attempt, rank), lines in sorted(self.lines.items()):
            for line in lines:
                end = ends[attempt]
                if line["event"] == "report" and (end is None or line["step"] <= end):
                    found[line["step"], rank] = line["metrics"]
        return dict(sorted(found.items()))

    @property
    def committed(self) -> list[int]:
        """The steps whose checkpoints were committed, in the first attempt."""
        records = journal_records(Path(self.result.path))
        return sorted({record["iteration"] for record in records if record["kind"] == "checkpoint"})

    @property
    def starts(self) -> list[int]:
        """After which step each attempt started."""
        records = journal_records(Path(self.result.path))
        return [record["start_index"] for record in records if record["kind"] == "attempt"]


def assert_resume_equivalent(
    trainer: BaseTrainer,
    *,
    step: int | None = None,
    how: Literal["retry", "restore"] = "retry",
    ignore: Sequence[str] = (),
) -> None:
    """Train without and with an interruption, and raise AssertionError if the outcomes differ.

    The interruption is a kill of rank 0 in its report number `step`, by default in the middle, between two
    checkpoints. The run continues by a retry, or with how="restore" by a new fit(resume="must"). Metrics in `ignore`
    are not compared; leave out times and the like.

    The runs use one thread per worker, fixed seeds, and temporary directories; the trainer's callbacks do not take
    part. Checkpoints are read with pickle and torch.load where their format needs it: they are those of your own
    trainer, made a moment ago.

    Raises ResumeDifferenceError, whose `forgot` and message say what the loop did not restore: an optimizer or
    scheduler of PyTorch that was created but never loaded, the state of a random generator, the position in a dataset.
    Raises NotComparableError if two uninterrupted runs differ, or if nothing was resumed.
    """
    __tracebackhide__ = True  # pytest shows the user's line
    if not hasattr(trainer, "with_overrides"):
        raise ConfigError(
            f"assert_resume_equivalent() takes a trainer, not {type(trainer).__name__}. Pass an object such as "
            "TorchTrainer(...) or DataParallelTrainer(...)."
        )
    check_choice(how, "how", ("retry", "restore"))
    if step is not None:
        whole_number(step, "step", least=2)
    if trainer.run_config.storage_filesystem is not None or trainer.run_config.checkpoint_config.num_to_keep == 0:
        raise ConfigError("assert_resume_equivalent() needs checkpoints on a local disk: leave out storage_filesystem.")
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-resume-")))
        stack.enter_context(_one_thread())
        clean = _run(trainer, place / "clean", ignore)
        at = step or _middle(clean)
        resumed = _interrupted(trainer, place / "resumed", ignore, at, how)
        first = _difference(clean, resumed)
        if first is None:
            return
        again = _difference(clean, _run(trainer, place / "again", ignore))
        if again is not None:
            raise NotComparableError(
                f"Two uninterrupted runs differ already, so nothing can be said about a resumed one. {again}. Seed "
                "every generator that the loop uses, shuffle with a seed, and pass metrics that are never the same "
                "(times, paths) as ignore=[...]."
            )
        suspects = forgotten(clean.lines, resumed.lines, resumed.starts[-1])
        raise ResumeDifferenceError(_told(at, resumed, first, suspects), first, suspects)


def _told(at: int, resumed: _Observed, first: str, suspects: Sequence[Forgotten]) -> str:
    lines = [
        f"The resumed run differs from the uninterrupted one (killed at step {at}, resumed after step "
        f"{resumed.starts[-1]}).",
        f"First difference: {first}.",
    ]
    if suspects:
        lines += ["The loop forgot:", *(f"  - {each.text}" for each in suspects)]
    else:
        lines.append("Nothing that is watched was forgotten: look at what the loop computes with and does not save.")
    return "\n".join(lines)


def _middle(clean: _Observed) -> int:
    """A step after a checkpoint and before the next one, so that what is lost in between is computed again."""
    last = max((step for step, rank in clean.rows if rank == 0), default=0)
    committed = [step for step in clean.committed if step < last]
    if not committed:
        raise NotComparableError(
            f"There is nothing to resume from: the run made {last} report(s), and none before the last one committed a "
            "checkpoint. Report checkpoints more often, with report(metrics, checkpoint=...)."
        )
    middle = (len(committed) - 1) // 2
    return [*committed, last][middle + 1]


def _difference(one: _Observed, other: _Observed) -> str | None:
    if one.rows != other.rows:
        for key in sorted(one.rows.keys() | other.rows.keys()):
            where = f"the row of step {key[0]}, rank {key[1]}"
            if key not in other.rows or key not in one.rows:
                return f"{where} is {'missing' if key in one.rows else 'too much'}"
            found = first_difference(one.rows[key], other.rows[key], f"{where}: ")
            if found is not None:
                return found
    if one.result.checkpoint is None or other.result.checkpoint is None:
        return None
    with one.result.checkpoint.as_directory() as first, other.result.checkpoint.as_directory() as second:
        found = first_file_difference(Path(first), Path(second))
        return None if found is None else f"the final checkpoint, {found}"


# -- running ------------------------------------------------------------------------------


def _interrupted(trainer: BaseTrainer, place: Path, ignore: Sequence[str], step: int, how: str) -> _Observed:
    observed = _run(trainer, place, ignore, chaos(kill={"rank": 0, "step": step}), how)
    if observed.starts[-1] == 0:
        raise NotComparableError(
            f"Nothing was resumed: when rank 0 was killed at step {step}, no checkpoint was committed yet. Pass a "
            "later step=."
        )
    return observed


def _run(
    trainer: BaseTrainer,
    place: Path,
    ignore: Sequence[str],
    faults: AbstractContextManager[object] | None = None,
    how: str = "",
) -> _Observed:
    """Train a copy of the trainer and read what was seen. `how` it survives the faults, if there are any."""
    notes = place / "notes"
    notes.mkdir(parents=True)
    config = replace(
        trainer.run_config,
        name="run",
        storage_path=str(place / "storage"),
        callbacks=[],
        verbose=0,
        failure_config=_retries(trainer.run_config.failure_config, 1 if how == "retry" else 0),
        checkpoint_config=_committed_at_once(trainer.run_config.checkpoint_config),
    )
    copy = trainer.with_overrides({}, run_config=config)
    with _observed(notes), faults or nullcontext():
        try:
            result = copy.fit()
        except TrainingFailedError:
            if how != "restore":
                raise
            result = copy.fit(resume="must")
    # A state that was a checkpoint's dict has what to_dict() added: times, and only in resumed attempts.
    return _Observed(result, dict(_lines(notes / FOLDER, ADDED_BY_TO_DICT.union(ignore))))


def _retries(config: FailureConfig, times: int) -> FailureConfig:
    """The kill is retried, whatever the user's runs retry."""
    return replace(
        config,
        max_failures=times,
        fail_fast=False,
        retry_on=None,
        never_retry=(),
        max_attempts_without_progress=None,
    )


def _committed_at_once(config: CheckpointConfig) -> CheckpointConfig:
    """A short loop would be over before anything that is saved in the background is committed."""
    return config if config.max_overhead is not None else replace(config, async_save=False)


def _lines(folder: Path, ignore: frozenset[str]) -> Iterator[tuple[tuple[int, int], list[dict[str, Any]]]]:
    for path in folder.glob("*.jsonl"):
        _, attempt, _, rank = path.stem.split("_")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["event"] == "report":
                line["metrics"] = {key: value for key, value in line["metrics"].items() if key not in ignore}
        yield (int(attempt), int(rank)), lines


@contextmanager
def _observed(notes: Path) -> Iterator[None]:
    """Faults that are configured already stay: the observer joins them."""
    configured = os.environ.get(FAULT_VARIABLE)
    spec = f"train_begin:times=every:call={_OBSERVER}"
    with _variables({FAULT_VARIABLE: f"{configured};{spec}" if configured else spec, NOTES_VARIABLE: str(notes)}):
        yield


@contextmanager
def _one_thread() -> Iterator[None]:
    with _variables(dict.fromkeys(THREADS_VARIABLES, "1")):
        yield


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
