"""``paceline diff``: the configurations and last metrics of runs beside each other."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from paceline.cli.errors import USAGE, CommandError
from paceline.cli.output import BOLD, add_format, heading, write, write_csv, write_json, write_table
from paceline.cli.output import whole_text as shown
from paceline.cli.places import PATH_HELP, run_at
from paceline.cli.table import Cell, Column, Styled, cell
from paceline.view.catalog import run_facts
from paceline.view.compare import aligned, differs

DESCRIPTION = """\
Compares runs or trials: the keys of their configurations, the settings that they were started with, and the metrics
that they reported last. Lines that differ begin with an asterisk.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help=f"two or more runs or trials: {PATH_HELP}")
    parser.add_argument("--only-changed", action="store_true", help="leave out what is the same everywhere")
    add_format(parser)


def run(given: argparse.Namespace) -> int:
    """Print the comparison."""
    if len(given.paths) < 2:
        raise CommandError("diff compares two or more runs: name another one.", USAGE)
    facts = [run_facts(run_at(path, "compare").path) for path in given.paths]
    names = _names([each.summary.path for each in facts])
    parts: dict[str, dict[str, Mapping[str, Any] | None]] = {
        "config": {name: each.config for name, each in zip(names, facts, strict=True)},
        "settings": {name: _settings(each.settings) for name, each in zip(names, facts, strict=True)},
        "metrics": {name: each.summary.reached.metrics for name, each in zip(names, facts, strict=True)},
    }
    rows = [
        {"part": part, "key": key, "differs": differs(values, len(names)), **_filled(values, names)}
        for part, each in parts.items()
        for key, values in aligned(each).items()
    ]
    if given.only_changed:
        rows = [row for row in rows if row["differs"]]
    if given.format == "json":
        write_json(rows)
    elif given.format == "csv":
        write_csv(rows, ["part", "key", "differs", *names])
    else:
        _write(rows, names, list(parts))
    return 0


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What was chosen by arguments, without what says how the run is stored."""
    return {name: settings.get(name) for name in ("scaling_config", "run_config", "datasets")}


def _filled(values: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: values.get(name) for name in names}


def _write(rows: list[dict[str, Any]], names: list[str], parts: list[str]) -> None:
    columns = [Column("key", "KEY", folds=True), *(Column(name, name, folds=True) for name in names)]
    first = True
    for part in parts:
        cells = [_cells(row, names) for row in rows if row["part"] == part]
        if cells:
            if not first:
                write("")
            heading({"config": "Configuration", "settings": "Settings", "metrics": "Last metrics"}[part])
            write_table(columns, cells, indent="  ")
            first = False
    if not any(row["differs"] for row in rows):
        write("These runs do not differ." if first else "\nThese runs do not differ.")


def _cells(row: Mapping[str, Any], names: list[str]) -> dict[str, Cell]:
    texts = {name: "-" if row[name] is None else shown(row[name]) for name in names}
    mark = "* " if row["differs"] else "  "
    key = mark + cell(row["key"])
    if not row["differs"]:
        return {"key": key, **texts}
    return {"key": Styled(key, BOLD), **{name: Styled(text, BOLD) for name, text in texts.items()}}


def _names(paths: list[str]) -> list[str]:
    """The shortest ends of the paths that differ."""
    if len(set(paths)) < len(paths):
        raise CommandError("diff compares different runs, but one was named twice.", USAGE)
    parts = [path.rstrip("/").split("/") for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = [os.path.join(*each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return [cell(name) for name in names]
    return paths
