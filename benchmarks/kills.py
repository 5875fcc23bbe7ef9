"""`python -m benchmarks kills --n 1000`: kill drivers, ranks and wardens at random moments, and see what becomes of it.

Every experiment is a real driver process. A killed driver is restored, a killed rank or warden is retried; then the
run must be complete: nothing hangs, no process stays, no checkpoint is torn, no row is lost or there twice.
`--start` kills workers and wardens within 25 ms of their fork and counts the fits that hang.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from uuid import uuid4

from benchmarks import kills_start
from benchmarks.kills_driver import DATASET_ROWS, Settings
from benchmarks.kills_experiment import TARGETS, WORKLOADS, Course, Report, Scene, experiment, live
from benchmarks.kills_judge import COLUMNS, judge


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    scratch = Path(tempfile.mkdtemp(prefix="paceline-kills-"))
    try:
        with busy(options.busy):
            failed = kills_start.campaign(options, scratch) if options.start else campaign(options, scratch)
    except BaseException:
        print(f"the campaign did not come to its end; its files are in {scratch}", file=sys.stderr)
        raise
    if failed:
        print(f"what went wrong is kept in {scratch}")
        return 1
    shutil.rmtree(scratch)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks kills", description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="how many kills (default: 1000)")
    parser.add_argument("--seed", default=None, help="the same seed draws the same experiments (default: a new one)")
    parser.add_argument("--kinds", default=",".join(TARGETS), help=f"what is killed (default: {','.join(TARGETS)})")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"any of {','.join(WORKLOADS)} (default: all)")
    parser.add_argument("--parallel", type=int, default=2, help="experiments at a time (default: 2)")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds after which a driver hangs (default: 30)")
    parser.add_argument("--busy", type=int, default=0, help="number of processes that do nothing but use a core")
    parser.add_argument("--start", action="store_true", help="kill within 25 ms of a fork and count hanging fits")
    options = parser.parse_args(arguments)
    options.kinds = options.kinds.split(",")
    options.workloads = options.workloads.split(",")
    for given, known in ((options.kinds, TARGETS), (options.workloads, WORKLOADS)):
        if unknown := set(given) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    options.seed = options.seed or f"{random.SystemRandom().randrange(10**6)}"
    return options


@contextmanager
def busy(count: int) -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def campaign(options: argparse.Namespace, scratch: Path) -> bool:
    """Run all experiments and print the table; True if anything is not 0."""
    started = time.monotonic()
    print(f"kills: n={options.n} seed={options.seed} parallel={options.parallel} busy={options.busy}", flush=True)
    write_dataset(scratch / "dataset")
    courses = {workload: undisturbed(workload, scratch, options.limit) for workload in options.workloads}
    pairs = [(workload, target) for target in options.kinds for workload in options.workloads]
    reports: list[Report] = []

    def start(number: int) -> Future[Report]:
        workload, target = pairs[number % len(pairs)]
        return pool.submit(
            experiment, number, options.seed, workload, target, courses[workload], scratch, options.limit
        )

    with ThreadPoolExecutor(options.parallel) as pool:
        numbers, running, landed = count(), set[Future[Report]](), 0
        while landed < options.n:  # a kill that meets nobody does not count
            while len(running) < min(options.parallel, options.n - landed):
                running.add(start(next(numbers)))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                reports.append(report := future.result())
                landed += report.landed
                say(report, landed, options.n, time.monotonic() - started)
    print(table(reports, pairs))
    print(f"{len(reports)} experiments in {time.monotonic() - started:.0f} s; seed {options.seed}")
    left = sum(bool(report.temporary) for report in reports)
    print(f"for information: {left} left something in TMPDIR, which does not belong to the run")
    return any(report.findings for report in reports)


def write_dataset(folder: Path) -> None:
    """Two files, with row groups that fit no batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    cut = DATASET_ROWS * 5 // 8
    for number, ids in enumerate((range(cut), range(cut, DATASET_ROWS))):
        pq.write_table(pa.table({"id": list(ids)}), folder / f"{number}.parquet", row_group_size=7 - 2 * number)


def undisturbed(workload: str, scratch: Path, limit: float) -> Course:
    """How long it takes if nothing is killed; it must be perfect, or no judgement means anything."""
    times: dict[str, float] = {}

    def watch(scene: Scene) -> None:
        scene.wait_for_event("begin")
        begun = time.monotonic()
        for event in ("warden", "fork"):
            scene.wait_for_event(event)
            times[event] = time.monotonic() - begun
        scene.process.wait(limit)
        times["end"] = time.monotonic() - begun
        for name, said in (("function", "started"), ("returned", "returning")):
            moments = [mark["time"] / 1e9 - begun for mark in settings.marks.read(said)]
            times[name] = min(moments) if said == "started" else max(moments)

    for strays in (True, False):  # the first one warms the page cache
        place = scratch / f"undisturbed-{workload}-{strays}"
        place.mkdir()
        settings = Settings(str(place), workload, strays=strays, dataset=str(scratch / "dataset"))
        settings.save()
        life = live(settings, f"kills{uuid4().hex[:12]}", [], limit, watch)
        if findings := judge(settings, [life]):
            raise SystemExit("\n".join([f"{workload} fails although nothing is killed:", *(f.text for f in findings)]))
        shutil.rmtree(place)
    course = Course(**times)
    text = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items())
    print(f"  undisturbed {workload}: {text}", flush=True)
    return course


def say(report: Report, done: int, of: int, seconds: float) -> None:
    for column in COLUMNS:
        texts = [finding.text for finding in report.findings if finding.column == column]
        if texts:
            more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
            first, *_ = texts[0].splitlines()
            print(f"  {report.number} {report.workload}/{report.target}: {column}: {first}{more}", flush=True)
    if report.landed and (done % 20 == 0 or done == of):
        print(f"  {done} of {of} after {seconds:.0f} s", flush=True)


def table(reports: Sequence[Report], pairs: Sequence[tuple[str, str]]) -> str:
    """Per workload and kind the number of experiments with at least one such finding."""
    head = ("workload", "killed", "n", "missed", *COLUMNS)
    lines = []
    for workload, target in pairs:
        own = [report for report in reports if (report.workload, report.target) == (workload, target)]
        lines.append((workload, target, *_counts(own)))
    lines.append(("all", "", *_counts(reports)))
    cells = [head, *[tuple(map(str, line)) for line in lines]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def _counts(reports: Sequence[Report]) -> tuple[int, ...]:
    missed = sum(not report.landed for report in reports)
    found = [sum(any(f.column == column for f in report.findings) for report in reports) for column in COLUMNS]
    return len(reports) - missed, missed, *found
