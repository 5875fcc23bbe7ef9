"""Finds runs, and says how one that did not finish is continued: the line to write, and whether its code has changed.

The fingerprint of code is plain data: the Python version, and a hash for the function and for each function of its
module that it refers to. None means that nothing is known about the code.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import tempfile
import textwrap
import tokenize
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.air.errors import RestoreError, StorageError
from paceline.run.records import Header, RunRecords, header_of
from paceline.storage.commit import is_put_aside
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal_parts import fetch_journal
from paceline.storage.run_dir import SEARCH_JOURNALS, RunDir, resolve_storage, search_journal
from paceline.storage.twin import read_origin

_WITHOUT_RECORD = ("train_loop_per_worker=...",)
"""What is probably to be given again for a run that does not say."""


def restore_line(trainer: str, place: str, again: Sequence[str]) -> str:
    """The call that continues a run; `again` are the arguments that are not stored with it."""
    return f"{trainer}.restore({', '.join([repr(place), *again])}).fit()"


def is_run(header: Header) -> bool:
    """False for a trial, which its search continues."""
    return header.settings.get("again", _WITHOUT_RECORD) is not None


def line_for(header: Header, place: str) -> str:
    """The same for a run that was found at a place."""
    return restore_line(header.trainer, place, header.settings.get("again", _WITHOUT_RECORD))


def search_line(place: str) -> str:
    """The call that continues a search."""
    return f"Tuner.restore({place!r}, trainable=...).fit()"


def place_of(run_dir: RunDir) -> str:
    """What restore() takes: the URI of a run on remote storage."""
    return read_origin(run_dir.origin) or str(run_dir.root)


def search_of(trial: str, header: Header, filesystem: Any = None) -> str | None:
    """The place of the search that a trial belongs to; None for a run of its own."""
    journal = search_journal(header.trial_id.partition("_")[0])
    parent, _, _ = trial.rstrip("/").rpartition("/")
    resolved = resolve_storage(parent) if parent else Path("/")
    if isinstance(resolved, Path):
        return str(resolved) if (resolved / journal).is_file() else None
    return parent if FsspecFilesystem(parent, filesystem).exists(journal) else None


def instead_of_search(path: str, filesystem: Any = None) -> str:
    """What a place that has no search holds instead, and the line that continues that; empty if it holds no run."""
    resolved = resolve_storage(path)
    if isinstance(resolved, Path):
        found = [(str(each.root), place_of(each), header_of(each)) for each in find_run_dirs(resolved)[:1]]
    else:
        trials, _ = find_remote_runs(resolved, filesystem)
        found = [(place, place, records.header) for place, records in trials[:1]]
    for directory, place, header in found:
        if header is not None:
            search = search_of(directory, header, filesystem)
            if search is not None:
                return f"It is one trial of a search. To continue the search: {search_line(search)}"
            if not is_run(header):
                return f"It has trials of a search, but no {SEARCH_JOURNALS}. Result.from_path reads each trial."
            return f"It is a run of {header.trainer}. To continue it: {line_for(header, place)}"
    return ""


def find_run_dirs(path: Path) -> list[RunDir]:
    """The directories of runs at or below an experiment's directory, newest first."""
    below = [each for each in path.glob("*/") if not is_put_aside(each)] if path.is_dir() else []
    found = [RunDir(candidate) for candidate in (path, *below) if (candidate / "journal.jsonl").is_file()]
    return sorted(found, key=lambda run_dir: run_dir.journal.stat().st_mtime, reverse=True)


def find_remote_runs(
    uri: str, filesystem: Any = None
) -> tuple[list[tuple[str, RunRecords]], list[RestoreError | StorageError]]:
    """(URI, records) of the runs at or one level below a URI, the one last worked at first.

    And what is wrong with those that cannot be read: one damaged run is no reason to give up the others.
    """
    store = FsspecFilesystem(uri, filesystem)
    found, problems = [], []
    for name in store.list():
        *folders, file = name.split("/")
        if file == "journal.jsonl" and len(folders) <= 1:
            try:
                found.append(("/".join([uri, *folders]), _remote_records(store, name)))
            except (RestoreError, StorageError) as error:
                problems.append(error)
    return sorted(found, key=lambda run: run[1].last_time, reverse=True), problems


def _remote_records(store: FsspecFilesystem, journal: str) -> RunRecords:
    with tempfile.TemporaryDirectory(prefix="paceline-restore-") as folder:
        run_dir = RunDir(Path(folder))
        fetch_journal(store, journal, run_dir.journal)
        try:
            return RunRecords.read(run_dir)
        except (RestoreError, StorageError) as error:
            text = str(error).replace(str(run_dir.journal), f"{store.label}/{journal}")
            raise RestoreError(text) from error


def does_not_exist(path: str, filesystem: Any, what: str) -> RestoreError | None:
    """The error for a place where there is nothing at all, or a file; `what` should be there."""
    resolved = resolve_storage(path)
    if isinstance(resolved, Path):
        if resolved.is_dir():
            return None
        problem = "is a file" if resolved.exists() else "does not exist"
        return RestoreError(f"{path} {problem}: give the directory of {what}.")
    store = FsspecFilesystem(resolved, filesystem)
    return None if store.list() else RestoreError(f"{store.label} does not exist: give the URI of {what}.")


Fingerprint = Mapping[str, Any]

_MOST_FUNCTIONS = 200
_MOST_NAMED = 4


def fingerprint(code: Any) -> dict[str, Any] | None:
    """The fingerprint of a function, a callable object or a class; None if its code cannot be looked at."""
    waiting = list(_functions_in(code))
    if not waiting:
        return None
    module, found = waiting[0].__module__, dict[str, str]()
    while waiting and len(found) < _MOST_FUNCTIONS:
        function = waiting.pop()
        if function.__qualname__ not in found:
            found[function.__qualname__] = _hash_of(function)
            waiting += [each for each in _referred_to(function) if each.__module__ == module]
    return {"python": f"{sys.version_info.major}.{sys.version_info.minor}", "functions": dict(sorted(found.items()))}


def changes(earlier: Fingerprint | None, now: Fingerprint | None) -> str:
    """What differs, as the part of a sentence; empty if nothing is known to differ."""
    if not earlier or not now:
        return ""
    old, new = earlier["functions"], now["functions"]
    kinds = {
        "changed": [name for name in new if name in old and _differ(old[name], new[name])],
        "new": [name for name in new if name not in old],
        "gone": [name for name in old if name not in new],
    }
    parts = [f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names]
    if earlier["python"] != now["python"]:
        parts.append(f"Python {earlier['python']} is now {now['python']}")
    return "; ".join(parts)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _differ(old: str, new: str) -> bool:
    """Hashes of different kinds cannot be compared: the source was there only once."""
    return old != new and old.partition(":")[0] == new.partition(":")[0]


def _functions_in(code: Any) -> Iterator[types.FunctionType]:
    while isinstance(code, functools.partial):
        code = code.func
    code = inspect.unwrap(code) if callable(code) else code
    if isinstance(code, types.MethodType):
        code = code.__func__
    if isinstance(code, types.FunctionType):
        yield code
    elif isinstance(code, type):
        for value in vars(code).values():
            value = getattr(value, "__func__", value)  # of a static or class method
            if isinstance(value, types.FunctionType):
                yield value
    elif callable(code) and not inspect.isbuiltin(code):
        yield from _functions_in(type(code))


def _referred_to(function: types.FunctionType) -> Iterator[types.FunctionType]:
    values = [function.__globals__.get(name) for name in _names_in(function.__code__)]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    for value in values:
        if isinstance(value, types.FunctionType | type) and value.__module__ == function.__module__:
            yield from _functions_in(value)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _hash_of(function: types.FunctionType) -> str:
    try:
        kind, text = "source", textwrap.dedent(inspect.getsource(function)).strip()
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):  # typed in, made by exec(), or edited since
        kind, text = "code", _constants_of(function.__code__)
    return f"{kind}:{hashlib.sha256(text.encode('utf-8', 'backslashreplace')).hexdigest()[:16]}"


def _constants_of(code: types.CodeType) -> str:
    """Constants and names; not the byte code, which each Python version writes differently."""
    constants = [
        _constants_of(each)
        if isinstance(each, types.CodeType)
        else repr(sorted(map(repr, each)) if isinstance(each, frozenset) else each)  # the order of a set is random
        for each in code.co_consts
    ]
    return repr((code.co_names, code.co_varnames, constants))
