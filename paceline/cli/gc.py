"""``paceline gc``: removes what nobody needs any more."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import msgspec

from paceline.air import temporary
from paceline.air.errors import PacelineError, RunLockedError
from paceline.air.words import counted, printable, size_text
from paceline.cli.errors import FAILED, code_of
from paceline.cli.output import add_format, add_verbose, note, write, write_csv, write_json
from paceline.cli.places import broken, found_at, opened_as, shown_place
from paceline.engine.local import drivers
from paceline.run.cleaning import Removed, clean_run
from paceline.storage.run_dir import default_storage_root
from paceline.view.catalog import Found

DESCRIPTION = """\
Removes what killed drivers left behind: processes, temporary directories, and half-written or half-deleted checkpoints
of the runs below PATH (by default, the results directory). With --keep N it also removes checkpoints: all but the N
best and the newest of each run. Runs and searches that are live are never touched.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", metavar="PATH", help="a run, a search, or a directory or URI of them")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument(
        "--keep", type=_count, metavar="N", help="remove checkpoints, except the N best and the newest of each run"
    )
    add_verbose(parser, "list the runs of which nothing is removed, too")
    add_format(parser)


def run(given: argparse.Namespace) -> int:
    """Remove, and print what was removed."""
    code = 0
    removed: list[Removed] = []
    for path in _runs(_found(given.path)):
        try:
            gone = clean_run(opened_as(path, given.path or ""), keep=given.keep, dry_run=given.dry_run, announce=note)
            if given.format == "table":
                _write(path, gone, given.verbose)
            removed += gone
        except RunLockedError as error:
            note(str(error))
        except PacelineError as error:
            note(str(error))
            code = max(code, code_of(error), FAILED)
    ended = _sweep_processes(given.dry_run)
    rows = [msgspec.to_builtins(each) for each in removed]
    if given.format == "json":
        write_json({"dry_run": given.dry_run, "removed": rows, "processes": ended})
    elif given.format == "csv":
        write_csv(rows, ["kind", "path", "size"])
    else:
        _write_counts(removed, ended, given.dry_run)
    return code


def _found(path: str | None) -> Found:
    if path is None and not default_storage_root().exists():
        return Found()
    found = found_at(path or str(default_storage_root()))
    if not found.runs and not found.searches and len(found.problems) == 1:
        raise broken(found)
    return found


def _runs(found: Found) -> Iterator[str]:
    """The runs and trials that are not live."""
    for problem in found.problems:
        note(f"{problem.message} Nothing of it is removed.")
    for summary in found.runs:
        if summary.alive:
            note(f"{shown_place(summary.path)} is live, so nothing of it is removed.")
        else:
            yield summary.path
    for search in found.searches:
        if search.alive:
            note(f"{shown_place(search.path)} is live, so nothing of it is removed.")
        else:
            yield from (trial.path for trial in search.trials if trial.status != "pending")


def _sweep_processes(dry_run: bool) -> int:
    """How many processes of killed drivers were ended, or would be."""
    if dry_run:
        from paceline.engine.local.processes import marked_by

        return sum(len(marked_by(driver.identity)) for driver in drivers.left_behind())
    temporary.sweep()
    return drivers.sweep()


def _write(path: str, removed: list[Removed], verbose: bool) -> None:
    for each in removed:
        size = size_text(each.size) if each.size is not None else ""
        write(f"{each.kind:<10}  {size:>9}  {printable(shown_place(each.path))}")
    if verbose and not removed:
        write(f"{'untouched':<10}  {'':>9}  {printable(shown_place(path))}")


def _write_counts(removed: list[Removed], ended: int, dry_run: bool) -> None:
    what = [counted(sum(each.kind == "leftover" for each in removed), "leftover")]
    what.append(counted(sum(each.kind == "checkpoint" for each in removed), "checkpoint"))
    if ended:
        what.append(counted(ended, "process of a killed driver", "processes of killed drivers"))
    size = size_text(sum(each.size or 0 for each in removed))
    if not removed and not ended:
        write("There is nothing to remove.")
    else:
        write(f"{'Would remove' if dry_run else 'Removed'} {', '.join(what)} ({size}).")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
