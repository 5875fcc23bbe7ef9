"""`python -m benchmarks soak --minutes 60`: one driver trains, searches, reads data and serves for an hour, while the
chaos kit makes things go wrong in it.

After each round the invariants of its runs are checked and its files are deleted. Between rounds the driver's memory,
descriptors, threads, processes and temporary files are measured; after the warm-up they must stay flat.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak_gauges import GAUGES, Sample, sample, table, trends

WARM_UP = 0.3
"""The part of the time after which the gauges must be flat."""
MOST_FINDINGS = 5
ROUND_LIMIT_S = 180.0
"""A round that takes longer hangs: the stacks are printed and the soak ends."""


@dataclass
class Tally:
    """What one kind of work came to."""

    rounds: int = 0
    faults: int = 0
    findings: int = 0
    seconds: float = 0.0


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="paceline-soak-"))
    for variable in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR"):
        folder = scratch / variable.lower()
        folder.mkdir(mode=0o700)
        os.environ[variable] = str(folder)
    tempfile.tempdir = None
    succeeded = soak(options, scratch)
    if succeeded:
        shutil.rmtree(scratch)
    else:
        print(f"what went wrong is kept in {scratch}")
    return 0 if succeeded else 1


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    from benchmarks.soak_work import WORK

    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    usual = float(os.environ.get("SOAK_MINUTES") or 60)
    parser.add_argument("--minutes", type=float, default=usual, help="how long (default: SOAK_MINUTES, or 60)")
    parser.add_argument("--seed", default=None, help="the same seed draws the same faults (default: a new one)")
    parser.add_argument("--work", default=",".join(WORK), help=f"any of {','.join(WORK)} (default: all)")
    options = parser.parse_args(arguments)
    options.work = options.work.split(",")
    if unknown := set(options.work) - set(WORK):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(WORK)}")
    options.seed = options.seed or f"{random.SystemRandom().randrange(10**6)}"
    return options


def soak(options: argparse.Namespace, scratch: Path) -> bool:
    """Work until the time is over, and print what it came to; False if something went wrong."""
    print(f"soak: {options.minutes:g} minutes, seed {options.seed}, {', '.join(options.work)}", flush=True)
    began, samples, tallies, number = time.monotonic(), list[Sample](), defaultdict[str, Tally](Tally), 0
    findings = 0
    while time.monotonic() - began < options.minutes * 60 and findings < MOST_FINDINGS:
        name = options.work[number % len(options.work)]
        findings += not one_round(name, f"{options.seed}-{number}", scratch / f"round_{number}", tallies[name])
        number += 1
        samples.append(sample(time.monotonic() - began, scratch))
        if number % (5 * len(options.work)) == 0:
            say(samples[-1], number)
    print(tally_table(tallies))
    try:
        found = trends(samples, WARM_UP * samples[-1].seconds)
    except ValueError as error:
        print(error)
        return False
    print(table(found))
    faults = sum(tally.faults for tally in tallies.values())
    print(
        f"{number} rounds, {faults} faults and {findings} findings in {samples[-1].seconds / 60:.1f} minutes; "
        f"seed {options.seed}"
    )
    return not findings and all(trend.is_flat for trend in found)


def one_round(name: str, seed: str, place: Path, tally: Tally) -> bool:
    """One round of one kind of work; its files are deleted if all is well."""
    from benchmarks.soak_work import WORK

    faulthandler.dump_traceback_later(ROUND_LIMIT_S, exit=True)
    place.mkdir()
    began = time.monotonic()
    try:
        tally.faults += WORK[name](random.Random(seed), place)
    except (Exception, SystemExit):
        print(f"--- {name}, seed {seed}:", flush=True)
        traceback.print_exc()
        tally.findings += 1
        return False
    finally:
        faulthandler.cancel_dump_traceback_later()
        tally.rounds += 1
        tally.seconds += time.monotonic() - began
    shutil.rmtree(place)
    return True


def say(newest: Sample, number: int) -> None:
    shown = ", ".join(f"{gauge.name} {value:.1f}" for gauge, value in zip(GAUGES, newest.values, strict=True))
    print(f"{newest.seconds / 60:5.1f} min, round {number}: {shown}", file=sys.stderr, flush=True)


def tally_table(tallies: dict[str, Tally]) -> str:
    lines = ["| work | rounds | faults | findings | s per round |", "|---|---|---|---|---|"]
    for name, tally in tallies.items():
        each = tally.seconds / tally.rounds
        lines.append(f"| {name} | {tally.rounds} | {tally.faults} | {tally.findings} | {each:.2f} |")
    return "\n".join(lines)
