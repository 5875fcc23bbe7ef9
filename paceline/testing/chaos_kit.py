"""chaos(): make things go wrong in a training run, on purpose and at a known place.

    with chaos(kill={"rank": 1, "step": 7}):
        result = trainer.fit()

A step is a report index: step 7 is the report that becomes training_iteration 7. Faults at a step happen inside
report(), before the row is sent. `chaos_faults.py` lists the faults and their keys; `air/faults.py` carries them out.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.air.checks import reject_unknown
from paceline.air.errors import ConfigError
from paceline.air.faults import FAULT_VARIABLE, NOTES_VARIABLE
from paceline.testing.chaos_faults import KINDS, Described, described

Directory = str | os.PathLike[str]
Settings = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Fired:
    """A fault that has happened."""

    fault: str
    """As it was configured: "kill={'rank': 1, 'step': 7}"."""
    rank: int | str
    """Of the process it happened to: a rank, or "driver"."""
    attempt: int
    step: int | None
    pid: int


_to_carry_out: dict[str, Callable[[], object]] = {}
"""What faults in the driver do, by the name of the fault."""


def carry_out(name: str) -> None:
    """Called by a fault that is due in the driver, which is this process."""
    _to_carry_out[name]()


class Chaos:
    """The faults of one `chaos(...)` call; a context manager.

    Faults are set by environment variables of this process, which workers inherit, and so do drivers that it starts.
    """

    def __init__(self, faults: Sequence[Described], all_must_fire: bool, directory: Directory | None) -> None:
        token = secrets.token_hex(4)
        self._faults = {f"{token}-{number}": fault for number, fault in enumerate(faults)}
        self._all_must_fire = all_must_fire
        self._given = None if directory is None else Path(os.path.abspath(directory))  # Workers run elsewhere.
        if self._given is not None and not self._given.is_dir():
            raise ConfigError(f"chaos(directory=...): {str(self._given)!r} is not a directory. Create it first.")
        self._notes: Path | None = None
        self._before: dict[str, str | None] = {}
        self._fired: list[Fired] = []

    def __enter__(self) -> Chaos:
        if self._notes is not None:
            raise RuntimeError("This chaos() is in use already: call chaos() again for another block.")
        outer = os.environ.get(NOTES_VARIABLE)
        self._notes = Path(outer or tempfile.mkdtemp(prefix="paceline-chaos-", dir=self._given))
        specs = [spec for name, fault in self._faults.items() for spec in fault.specs(name)]
        if configured := os.environ.get(FAULT_VARIABLE):
            specs.insert(0, configured)
        _to_carry_out.update({name: fault.does for name, fault in self._faults.items() if fault.does is not None})
        self._before = {name: os.environ.get(name) for name in (FAULT_VARIABLE, NOTES_VARIABLE)}
        os.environ[FAULT_VARIABLE] = ";".join(specs)
        os.environ[NOTES_VARIABLE] = str(self._notes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True  # pytest shows the user's line
        assert self._notes is not None
        self._fired = self.fired
        for name in self._faults:
            _to_carry_out.pop(name, None)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._before[NOTES_VARIABLE] is None:
            shutil.rmtree(self._notes, ignore_errors=True)
        self._notes = None
        if not self.unfired or not self._all_must_fire:
            return
        text = self._told_unfired()
        if error is None:
            raise AssertionError(text)
        error.add_note(text)

    @property
    def fired(self) -> list[Fired]:
        """What has happened so far, in the order of time."""
        if self._notes is None:
            return list(self._fired)
        found = []
        for path in self._notes.iterdir():
            if path.name.rpartition(".")[0] not in self._faults:
                continue
            try:
                note, at = json.loads(path.read_text()), path.stat().st_mtime_ns
            except ValueError:  # being written at this moment, or the process died while it wrote
                continue
            found.append((at, path.name, self._from_note(note)))
        return [fired for *_, fired in sorted(found, key=lambda each: each[:2])]

    @property
    def unfired(self) -> list[str]:
        """The faults that have not happened."""
        happened = {fired.fault for fired in self.fired}
        return [fault.text for fault in self._faults.values() if fault.text not in happened]

    def _from_note(self, note: Mapping[str, Any]) -> Fired:
        rank = note["rank"]
        return Fired(
            self._faults[note["id"]].text,
            int(rank) if rank.isdecimal() else rank,
            int(note["attempt"]),
            int(note["step"]) if "step" in note else None,
            note["pid"],
        )

    def _told_unfired(self) -> str:
        seen = "; ".join(f"{fired.fault} on rank {fired.rank}" for fired in self._fired)
        where = self._given or tempfile.gettempdir()
        return (
            f"These faults never happened: {'; '.join(self.unfired)}. "
            + (f"These did: {seen}. " if seen else "")
            + "So the test shows nothing about them. Check rank, step and attempt: was there such a worker, and did it "
            "report that often? On a cluster, workers on other machines note their faults only if they see "
            f"{where}: pass a shared directory=. all_must_fire=False accepts faults that do not happen."
        )


def chaos(*, all_must_fire: bool = True, directory: Directory | None = None, **faults: Settings) -> Chaos:
    """Inject faults into the runs of a block. Each fault is a dict of settings, or a list of such dicts.

    | fault | what happens | settings |
    |---|---|---|
    | kill | the worker is killed (SIGKILL) | rank, step |
    | sigterm | the worker, or rank="driver", gets SIGTERM | rank, step |
    | fail | report() raises | rank, step; error="RuntimeError" |
    | stall | the worker hangs | rank, step; seconds (forever), how="sleep" or "sigstop" |
    | slow | each report() of the worker takes longer | rank, seconds; first_step, last_step |
    | corrupt_checkpoint | a committed checkpoint is damaged | step; how="flip" or "truncate", "empty", "delete"; file |
    | slow_storage | writing takes longer | seconds or bytes_per_second; where, rank |
    | fail_storage | writing fails | error="EIO", "ENOSPC", ...; where, rank, step |
    | lose_node | a node and its workers are gone when rank 0 has reported | node, step, engine |

    All but the slow ones happen once; times=n lets them happen again in later attempts, and attempt=n only in that one.
    `file` is a pattern such as "*.pt"; the first file by name is damaged if none is given.
    `where` is "checkpoint" (its files, as a rank writes them), "journal" or "store" (remote storage); slow_storage
    slows down all three unless told otherwise.

    A fault that did not happen raises AssertionError at the end of the block: such a test would show nothing.
    all_must_fire=False accepts it. The faults note in `directory` (a temporary one) that they happened.
    """
    reject_unknown("chaos()", faults, [*KINDS, "all_must_fire", "directory"], {})
    wanted = [each for kind, given in faults.items() for each in described(kind, given)]
    if not wanted and all_must_fire:
        raise ConfigError(
            "chaos() was given no fault, so the block would test nothing. Name one, such as "
            "kill={'rank': 1, 'step': 7}, or pass all_must_fire=False."
        )
    return Chaos(wanted, all_must_fire, directory)
