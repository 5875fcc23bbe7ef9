"""``paceline doctor``: what of this machine and this installation may get in the way of a run."""

from __future__ import annotations

import argparse
from typing import Any

from paceline.air.words import counted
from paceline.cli.doctor_model import add_model_options, is_without_model, show_memory
from paceline.cli.errors import FAILED, USAGE, CommandError
from paceline.cli.output import GREEN, RED, YELLOW, add_format, heading, write, write_csv, write_json, write_pairs
from paceline.cli.table import Cell, Styled, cell

DESCRIPTION = """\
Looks at cores, memory, /dev/shm, limits, the clock, loopback, the results directory, live drivers, what killed drivers
left behind, installed frameworks and their versions, Ray and GPUs. It changes nothing, except with --fix, which ends
the processes that killed drivers left behind and removes their files.

The exit code is 1 if there is a problem that prevents runs; warnings do not count.

With --model it estimates instead what training that model needs in memory on each worker, with DDP and with FSDP2, and
what is left for activations. It calls the function, and starts no workers.
"""

_STYLES = {"ok": GREEN, "warning": YELLOW, "problem": RED}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fix", action="store_true", help="sweep what killed drivers left behind")
    add_format(parser)
    add_model_options(parser)


def run(given: argparse.Namespace) -> int:
    """Print every finding; 1 if one of them is a problem. With a model, print what it needs."""
    if is_without_model(given):
        raise CommandError("Which model? Name a function that returns it with --model module:function.", USAGE)
    if given.model is not None:
        if given.fix:
            raise CommandError("--fix and --model do different things: give one of them.", USAGE)
        return show_memory(given)
    from paceline.cli.doctor_machine import machine_findings, sweep
    from paceline.cli.doctor_packages import package_findings

    swept = sweep() if given.fix else []
    findings = [*swept, *machine_findings(), *package_findings()]
    rows: list[dict[str, Any]] = [
        {"part": each.part, "check": each.check, "level": each.level, "finding": each.text, "advice": each.advice}
        for each in findings
    ]
    if given.format == "json":
        write_json(rows)
    elif given.format == "csv":
        write_csv(rows)
    else:
        _write_report(rows)
    return FAILED if any(row["level"] == "problem" for row in rows) else 0


def _write_report(rows: list[dict[str, Any]]) -> None:
    for number, part in enumerate(dict.fromkeys(row["part"] for row in rows)):
        if number:
            write("")
        heading(part)
        write_pairs([(row["check"], _said(row)) for row in rows if row["part"] == part])
    counts = {level: sum(row["level"] == level for row in rows) for level in ("problem", "warning")}
    write("")
    if not any(counts.values()):
        heading("Nothing is wrong.")
    else:
        said = [counted(count, level) for level, count in counts.items() if count]
        heading(f"Found {' and '.join(said)}.")


def _said(row: dict[str, Any]) -> Cell:
    text = cell(f"{row['finding']}. {row['advice']}" if row["advice"] else row["finding"])
    if row["level"] in ("warning", "problem"):
        return Styled(f"{row['level'].upper()}: {text}", _STYLES[row["level"]])
    return text
