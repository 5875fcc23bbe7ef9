"""``paceline export``: a run or a search as a file that other programs, or people, read."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from paceline.air.words import counted, printable
from paceline.cli.errors import USAGE, CommandError
from paceline.cli.output import add_format, write, write_csv, write_json
from paceline.cli.places import add_path, one_at, opened_as, shown_place
from paceline.run.found_runs import RunSummary
from paceline.storage.run_dir import without_odd_characters
from paceline.tune.experiment.summary import ExperimentSummary

if TYPE_CHECKING:
    import pandas

DESCRIPTION = """\
Writes the rows of a run as CSV or Parquet, or a report in one HTML file: curves, metrics, configuration and failure.
Of a search it writes one row for each trial; of a checkpoint, the weights of its model as safetensors. Rows have the
metrics that were reported, training_iteration, time_total_s and timestamp; nested metrics are columns like "a/b".
"""

WEIGHTS = "safetensors"
FORMATS = ("csv", "parquet", "html", WEIGHTS)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_path(parser, "a run, a trial or a search; a checkpoint for safetensors")
    parser.add_argument(
        "--to",
        metavar="FORMAT",
        help="csv, parquet, html or safetensors (default: as the name of the file given with -o ends)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="- for standard output (default: named like the run)")
    parser.add_argument("--ranks", action="store_true", help="one row for each report and rank")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    add_format(parser)


def run(given: argparse.Namespace) -> int:
    """Write the file, and say where it is."""
    to = _format(given.to, given.output)
    if given.ranks and to in ("html", WEIGHTS):
        raise CommandError("--ranks is for CSV and Parquet.", USAGE)
    if to == WEIGHTS:
        return _export_weights(given)
    found = one_at(given.path, "exporting")
    if given.ranks and isinstance(found, ExperimentSummary):
        raise CommandError("--ranks is for runs: name a trial of the search.", USAGE)
    target = given.output or f"{_name(found)}.{to}"
    rows, save = _content(found, opened_as(found.path, given.path), to, given.ranks)
    if target == "-":
        if to == "parquet" and sys.stdout.isatty():
            raise CommandError("Parquet is not for a terminal: give a file with -o.", USAGE)
        sys.stdout.flush()
        save(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return 0
    with _new_file(Path(target), given.force) as file:
        save(file)
    row = {"path": found.path, "to": to, "file": target, "rows": rows}
    _tell(given.format, row, f"{printable(target)}: {counted(rows, 'row')} of {printable(shown_place(found.path))}")
    return 0


def _export_weights(given: argparse.Namespace) -> int:
    from paceline.cli.export_weights import checkpoint_at, save_weights

    checkpoint, name = checkpoint_at(given.path)
    target = given.output or f"{without_odd_characters(name) or 'model'}.{WEIGHTS}"
    if target == "-":
        raise CommandError("Weights are not for standard output: give a file with -o.", USAGE)
    with _new_file(Path(target), given.force) as file:
        tensors = save_weights(checkpoint, Path(file.name))
    row = {"path": given.path, "to": WEIGHTS, "file": target, "tensors": tensors}
    _tell(given.format, row, f"{printable(target)}: {counted(tensors, 'tensor')} of {printable(given.path)}")
    return 0


def _tell(format: str, row: dict[str, Any], text: str) -> None:
    if format == "json":
        write_json(row)
    elif format == "csv":
        write_csv([row])
    else:
        write(text)


def _format(to: str | None, output: str | None) -> str:
    """The one that was asked for, or that the file's name says."""
    if to is None:
        ending = Path(output or "").suffix.lower().removeprefix(".")
        if ending in FORMATS:
            return ending
        raise CommandError(
            f"Which format? Give --to {', '.join(FORMATS)}, or -o with a file that ends in .{', .'.join(FORMATS)}.",
            USAGE,
        )
    if to not in FORMATS:
        raise CommandError(f"--to {to}: choose {', '.join(FORMATS)}.", USAGE)
    return to


def _content(
    found: RunSummary | ExperimentSummary, place: str, to: str, ranks: bool
) -> tuple[int, Callable[[Any], None]]:
    """How many rows there are, and what writes them into an open file."""
    if to == "html":
        from paceline.view.report_html import run_report, search_report

        if isinstance(found, ExperimentSummary):
            rows, text = len(found.trials), search_report(found)
        else:
            rows, text = int(found.reached.iteration), run_report(place)
        return rows, lambda file: file.write(text.encode("utf-8", "replace"))
    from paceline.view.frames import run_frame, search_frame

    frame = search_frame(found) if isinstance(found, ExperimentSummary) else run_frame(place, ranks=ranks)
    return len(frame), lambda file: _save_frame(frame, to, file)


def _save_frame(frame: pandas.DataFrame, to: str, file: BinaryIO) -> None:
    if to == "csv":
        frame.to_csv(file, index=False)
    else:
        _as_plain_columns(frame).to_parquet(file, index=False)


def _as_plain_columns(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Parquet has one type for each column: where numbers and texts are mixed, all become text."""
    import pyarrow

    for name in [each for each in frame.columns if frame[each].dtype.kind == "O"]:
        try:
            pyarrow.array(frame[name], from_pandas=True)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
            frame[name] = frame[name].map(lambda value: None if value != value or value is None else str(value))
    return frame


def _name(found: RunSummary | ExperimentSummary) -> str:
    ending = "" if isinstance(found, ExperimentSummary) else f"_{found.trial_id}"
    return without_odd_characters(f"{found.name}{ending}") or "run"


@contextlib.contextmanager
def _new_file(path: Path, force: bool) -> Iterator[BinaryIO]:
    """A file that appears when it is complete."""
    if path.is_dir():
        raise CommandError(f"{path} is a directory: name a file.", USAGE)
    if not path.parent.is_dir():
        raise CommandError(f"The directory {path.parent} does not exist: make it, or name another file.", USAGE)
    if os.path.lexists(path) and not force:
        raise CommandError(f"{path} exists already: give another name with -o, or --force to replace it.", USAGE)
    if not path.parent.is_dir():
        raise CommandError(f"{path.parent} is not a directory, so {path.name} cannot be written there.", USAGE)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
