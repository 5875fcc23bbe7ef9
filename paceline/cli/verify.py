"""``paceline verify``: whether checkpoints and journals are as they were written."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec

from paceline.air.constants import CHECKPOINT_MANIFEST_FILE
from paceline.air.errors import RunNotFoundError
from paceline.air.secrets import without_credentials
from paceline.air.words import counted, printable, size_text
from paceline.cli.errors import DAMAGED, FAILED, USAGE, CommandError
from paceline.cli.output import add_format, add_verbose, note, painted, write, write_csv, write_json
from paceline.cli.places import add_path, found_at, opened_as, place, shown_place
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.run_dir import resolve_storage
from paceline.view.integrity import Verified, verify_checkpoint, verify_run

DESCRIPTION = """\
Reads every checkpoint that is kept and compares it with the hashes in its manifest, and reads every record of the
journals. PATH may be one checkpoint, a run, a search, or a directory of them. Remote checkpoints are downloaded. It
prints what is damaged or cannot be read, and how much was read; --verbose lists everything.

The exit code is 3 if something is damaged.
"""

PROBLEMS = ("damaged", "unreadable")
WHAT_NEXT = (
    "restore() and retries set damaged checkpoints of a run aside and continue from the newest intact one. If there is "
    "none, start a new run."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_path(parser, "a checkpoint, a run, a search, or several of them")
    add_verbose(parser, "list everything that was read")
    add_format(parser)


def run(given: argparse.Namespace) -> int:
    """Print what was read; 3 if something is damaged, 1 if something could not be read."""
    found: list[Verified] = []
    for each in _verified(given.path):
        each = _without_credentials(each, place(given.path))
        found.append(each)
        if given.format == "table" and (given.verbose or each.state in PROBLEMS):
            _write(each)
    rows = [msgspec.to_builtins(each) for each in found]
    if given.format == "json":
        write_json(rows)
    elif given.format == "csv":
        write_csv(rows)
    else:
        _write_counts(found)
    states = {each.state for each in found}
    return DAMAGED if "damaged" in states else FAILED if "unreadable" in states else 0


def _verified(given: str) -> Iterator[Verified]:
    path = place(given)
    if _is_checkpoint(path):
        yield verify_checkpoint(path)
        return
    try:
        found = found_at(given)
    except RunNotFoundError:
        raise _nothing_there(given, path) from None
    for problem in found.problems:
        yield Verified("journal", problem.path, "damaged" if problem.damaged else "unreadable", problem=problem.message)
    for summary in found.runs:
        yield from verify_run(opened_as(summary.path, path))
    for search in found.searches:
        for trial in search.trials:
            if trial.status != "pending":
                yield from verify_run(opened_as(trial.path, path))


def _without_credentials(each: Verified, uri: str) -> Verified:
    label = without_credentials(uri)
    return msgspec.structs.replace(each, path=each.path.replace(uri, label), problem=each.problem.replace(uri, label))


def _is_checkpoint(path: str) -> bool:
    resolved = resolve_storage(path)
    if isinstance(resolved, str):
        return FsspecFilesystem(resolved).exists(CHECKPOINT_MANIFEST_FILE)
    return (resolved / CHECKPOINT_MANIFEST_FILE).is_file()


def _write(each: Verified) -> None:
    """A line at once: hashing a large checkpoint takes its time."""
    state = painted(f"{each.state:<10}", each.state)
    size = size_text(each.size) if each.size else ""
    write(f"{state}  {size:>9}  {printable(shown_place(each.path))}")
    if each.problem:
        write(f"            {printable(each.problem)}")


def _write_counts(found: list[Verified]) -> None:
    checkpoints = sum(each.kind == "checkpoint" for each in found)
    counts = {"checkpoint": checkpoints, "journal": len(found) - checkpoints}
    said = " and ".join(counted(count, kind) for kind, count in counts.items() if count)
    bad = sum(each.state in PROBLEMS for each in found)
    write(f"Read {said or 'nothing'}: {f'{bad} damaged or unreadable' if bad else 'nothing is damaged'}.")
    if counts["journal"] and any((each.kind, each.state) == ("checkpoint", "damaged") for each in found):
        note(WHAT_NEXT)


def _nothing_there(given: str, path: str) -> CommandError:
    resolved = resolve_storage(path)
    exists = isinstance(resolved, Path) and resolved.exists()
    problem = "is neither" if exists else "does not exist"
    return CommandError(
        f"{shown_place(given)} {problem}: name a run, a search, a checkpoint, or a directory of them.", USAGE
    )
