"""What a run that is taken up again says about it, in three lines at most: what is loaded, why, and what differs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointError
from paceline.air.manifest import find_manifest
from paceline.air.packages import changed_versions, package_versions
from paceline.air.settings import changes, fingerprint, plain_config
from paceline.air.words import counted, duration_text, size_text, value_text
from paceline.run.attempt import Attempt, StartPoint, modules_to_preload
from paceline.run.data import RunData
from paceline.run.records import AttemptStarted, CheckpointCommitted, Header, RunRecords, header_of
from paceline.run.run_files import RunFiles
from paceline.run.spec import RunSpec
from paceline.storage.run_dir import RunDir

_MOST_KEYS = 3
"""Of a configuration; the others are counted."""


@dataclass(frozen=True)
class Notice:
    """What people read: three lines at most, the warning included."""

    lines: tuple[str, ...]
    warning: str = ""
    """If more differs than the number of workers."""
    versions_differ: bool = False
    """The result repeats the warning then."""


@dataclass(frozen=True)
class Circumstances:
    """What may have changed since a run was last at work. None: not known."""

    code: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    versions: Mapping[str, str] | None = None
    world_size: int | None = None

    @classmethod
    def now(cls, spec: RunSpec, data: RunData, world_size: int) -> Circumstances:
        versions = package_versions(modules_to_preload(spec.backend_config))
        return cls(fingerprint(spec.code), plain_config(spec.config), data_facts(data), versions, world_size)

    def note_in(self, record: AttemptStarted, *, with_code: bool) -> None:
        """Write them down for whoever continues the run. The header has the code of a run that is new."""
        record.versions = dict(self.versions or {})
        if self.data:
            record.data = dict(self.data)
        if with_code:
            record.code = None if self.code is None else dict(self.code)

    @classmethod
    def of(cls, records: RunRecords) -> Circumstances:
        """As they were when workers were last started."""
        return replace(_of_attempts(records), code=records.code, config=records.config)

    @classmethod
    def of_header(cls, header: Header) -> Circumstances:
        settings = header.current_settings
        return cls(code=settings.get("code"), config=settings.get("config"))


def _of_attempts(records: RunRecords) -> Circumstances:
    attempts = [record for record in records if isinstance(record, AttemptStarted)]
    if not attempts:
        return Circumstances()
    last = attempts[-1]
    data = last.data if isinstance(last.data, dict) else None
    versions = last.versions if isinstance(last.versions, dict) else None
    return Circumstances(data=data, versions=versions, world_size=last.world_size)


def data_facts(data: RunData) -> dict[str, Any]:
    """What tells one state of the datasets from another, as far as it is known without reading all rows."""
    return {
        name: {"rows": dataset.rows, "blocks": dataset.blocks, **dataset.origin}
        for name, dataset in data.datasets.items()
    }


def notice_for(
    attempt: Attempt, spec: RunSpec, files: RunFiles, trial: str, damaged: list[str], now: Circumstances | None
) -> Notice | None:
    """What an attempt says about its beginning; None for the first one of a new run without a checkpoint.

    `damaged` are the checkpoints that were set aside. `now` is None in a search, which restores its trials itself.
    """
    is_first, start = attempt.number == files.attempts_so_far, attempt.start_point
    if is_first and files.records is not None and now is not None:
        return _of_restore(trial, start, damaged, files.records, now)
    if attempt.number > 0 or files.records is not None:
        what, why = _what(trial, start, None), _why(start, damaged)
        return Notice((f"{what.removesuffix('.')}: {why.partition(': ')[2]}",))
    if spec.resume_from is not None and now is not None:
        return _of_given(trial, spec.resume_from, now)
    return None


def _of_restore(trial: str, start: StartPoint, damaged: list[str], records: RunRecords, now: Circumstances) -> Notice:
    """For a run that another driver has begun."""
    committed = {record.number: record for record in records if isinstance(record, CheckpointCommitted)}
    record = committed.get(start.checkpoint_number) if start.checkpoint_number is not None else None
    return _notice(_what(trial, start, record), _why(start, damaged), Circumstances.of(records), now)


def _of_given(trial: str, given: Checkpoint, now: Circumstances) -> Notice:
    """For a new run with `resume_from_checkpoint`."""
    facts, header = "", None
    if given.path is not None:
        facts = _in_brackets(*_size_and_time(Path(given.path)))
        header = header_of(RunDir(Path(given.path).parent))
    place = given.path or given.uri or "a checkpoint in memory"
    what = f"{trial} starts at iteration 1 with the state of {place}{facts}."
    why = "Why this one: it was passed as resume_from_checkpoint."
    if header is None:
        return Notice((what, why))
    return _notice(what, why, Circumstances.of_header(header), now)


def _what(trial: str, start: StartPoint, record: CheckpointCommitted | None) -> str:
    if start.checkpoint_number is None:
        return f"{trial} starts from the beginning."
    facts = "" if record is None else _in_brackets(record.size, record.time)
    where = " in memory" if start.in_memory is not None else ""
    return f"{trial} resumes after iteration {start.index} from checkpoint_{start.checkpoint_number:06d}{where}{facts}."


def _why(start: StartPoint, damaged: list[str]) -> str:
    if start.checkpoint_number is None:
        given = start.path or start.uri or start.in_memory is not None
        other = "; resume_from_checkpoint is loaded again" if given else ""
        return f"Why: no checkpoint has been committed{other}."
    newer = [name for name in damaged if name.partition(".")[0] > f"checkpoint_{start.checkpoint_number:06d}"]
    if newer:
        were = "were damaged and have" if len(newer) > 1 else "was damaged and has"
        return f"Why this one: it is the newest sound checkpoint; {', '.join(newer)} {were} been set aside."
    return "Why this one: it is the newest committed checkpoint."


def _in_brackets(size: int, stamp: float) -> str:
    facts = [size_text(size)] if size else []
    if stamp and (age := time.time() - stamp) >= 0:
        facts.append(f"saved {duration_text(age)} ago")
    return f" ({', '.join(facts)})" if facts else ""


def _size_and_time(directory: Path) -> tuple[int, float]:
    try:
        manifest = find_manifest(directory)
        created = manifest.facts.get("created") if manifest is not None else None
        stamp = float(created) if isinstance(created, int | float) else directory.stat().st_mtime
        return manifest.size if manifest is not None else 0, stamp
    except (OSError, CheckpointError):
        return 0, 0.0


def _notice(what: str, why: str, then: Circumstances, now: Circumstances) -> Notice:
    versions = changed_versions(then.versions or {}, now.versions or {})
    found = [*_changed_code(then, now), *_changed_config(then, now), *_changed_data(then, now), *versions]
    size = []
    if then.world_size is not None and now.world_size not in (None, then.world_size):
        size = [f"{counted(then.world_size, 'worker')} -> {now.world_size}"]
    differs = f"What differs: {'; '.join([*found, *size]) or 'nothing known'}."
    if found:
        return Notice((what, why), differs, versions_differ=bool(versions))
    return Notice((what, why, differs))


def _changed_code(then: Circumstances, now: Circumstances) -> list[str]:
    if then.code is None or now.code is None:
        return []
    said_below = then.versions is not None  # with the whole version of Python
    changed = changes({**then.code, "python": now.code["python"]} if said_below else then.code, now.code)
    return [f"code ({changed})"] if changed else []


def _changed_config(then: Circumstances, now: Circumstances) -> list[str]:
    if then.config is None or now.config is None:  # it is not plain, and not stored
        return []
    keys = list(_differing("", then.config, now.config))
    more = [f"and {len(keys) - _MOST_KEYS} more"] if len(keys) > _MOST_KEYS else []
    return [f"config ({', '.join([*keys[:_MOST_KEYS], *more])})"] if keys else []


def _differing(where: str, then: Any, now: Any) -> Iterator[str]:
    if not (isinstance(then, dict) and isinstance(now, dict)):
        if then != now:
            yield f"{where} {value_text(then)} -> {value_text(now)}"
        return
    for name in dict.fromkeys([*then, *now]):
        key = f"{where}.{name}" if where else str(name)
        if name not in now or name not in then:
            yield f"{key} {'removed' if name in then else 'added'}"
        else:
            yield from _differing(key, then[name], now[name])


def _changed_data(then: Circumstances, now: Circumstances) -> list[str]:
    before, after = then.data or {}, now.data or {}
    changes = {name: _changed_dataset(before[name], after[name]) for name in after if name in before}
    parts = [f"{name} {change}" for name, change in changes.items() if change]
    return [f"data ({', '.join(parts)})"] if parts else []


def _changed_dataset(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The difference that is worth most, of what both of them know."""
    differs = {name for name in now if name in then and then[name] != now[name]}
    if "rows" in differs:
        return f"{then['rows']:,} -> {now['rows']:,} rows"
    if "files" in differs:
        return "has other files, or files that have changed"
    if "steps" in differs:
        return "is made from its files in other steps"
    return "is in other blocks" if "blocks" in differs else ""
