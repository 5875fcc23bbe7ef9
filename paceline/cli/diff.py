"""``paceline diff``: the configurations and last metrics of runs beside each other."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from paceline.cli.errors import USAGE, CommandError
from paceline.cli.output import BOLD, add_format, heading, write, write_csv, write_json, write_table
from paceline.cli.output import whole_text as shown
from paceline.cli.places import PATH_HELP, opened_as, run_at
from paceline.cli.table import Cell, Column, Styled, cell
from paceline.run.found_runs import RunSummary
from paceline.view.catalog import run_facts
from paceline.view.compare import aligned, differs
from paceline.view.facts import users_config

DESCRIPTION = """\
Compares runs or trials: their configurations, and the metrics that they reported last. Lines that differ begin with an
asterisk. Settings such as those of RunConfig are listed only where they differ.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help=f"two or more runs or trials: {PATH_HELP}")
    parser.add_argument("--only-changed", action="store_true", help="leave out what is the same everywhere")
    add_format(parser)


def run(given: argparse.Namespace) -> int:
    """Print the comparison."""
    if len(given.paths) < 2:
        raise CommandError("diff compares two or more runs: name another one.", USAGE)
    facts = [run_facts(opened_as(run_at(path, "compare it").path, path)) for path in given.paths]
    named = dict(zip(_names([each.summary for each in facts]), facts, strict=True))
    names = list(named)
    parts: dict[str, dict[str, Mapping[str, Any] | None]] = {
        "config": {name: users_config(each) for name, each in named.items()},
        "settings": {name: _settings(each.settings) for name, each in named.items()},
        "metrics": {name: each.summary.reached.metrics for name, each in named.items()},
    }
    rows = [
        {"part": part, "key": key, "differs": differs(values, len(names)), **_filled(values, names)}
        for part, each in parts.items()
        for key, values in aligned(each).items()
    ]
    rows = [row for row in rows if row["differs"] or not (given.only_changed or row["part"] == "settings")]
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
    columns = [
        Column("mark", ""),
        Column("key", "KEY", folds=True),
        *(Column(name, name, folds=True) for name in names),
    ]
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
    key = cell(row["key"])
    if not row["differs"]:
        return {"key": key, **texts}
    return {"mark": "*", "key": Styled(key, BOLD), **{name: Styled(text, BOLD) for name, text in texts.items()}}


def _names(runs: list[RunSummary]) -> list[str]:
    """What the runs go by here: the first kind of name that tells them apart."""
    if len({each.path for each in runs}) < len(runs):
        raise CommandError("diff compares different runs, but one was named twice.", USAGE)
    kinds = (
        [each.name for each in runs],
        [each.trial_id for each in runs],
        [f"{each.name}/{each.trial_id}" for each in runs],
        [os.path.basename(os.path.dirname(each.path)) for each in runs],
    )
    chosen = next((names for names in kinds if len(set(names)) == len(names)), [each.path for each in runs])
    return [cell(name) for name in chosen]
