"""One experiment of the kill campaign: a driver, a kill, and a driver that resumes if necessary."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks import processes
from benchmarks.harness import ROOT
from benchmarks.kills_driver import STACKS_SIGNAL, TRIALS, Settings
from benchmarks.kills_judge import Finding, Life, judge, judge_checkpoints, trials_that_ended

WORKLOADS = ("run", "search", "data")
TARGETS = ("driver", "rank", "warden", "both")
EARLY_S = 0.05
SECONDS_TO_GO = 1.0
LOOK_S = 0.0005
PATIENCE_S = 30.0
"""How long a driver may take to import what it needs."""


@dataclass(frozen=True)
class Kill:
    """What is killed, and when: `delay` seconds after an event of the driver's life."""

    target: str
    after: str
    """begin: before the trainer is made; fit: fit() is called; warden, fork: such a process appears; function: a train
    function starts; retry: a worker appears that was not there at the kill before."""
    nth: int = 1
    """Of the workers that are forked."""
    delay: float = 0.0
    choice: int = 0
    """Which of several ranks, modulo their number."""


@dataclass(frozen=True)
class Course:
    """How long an undisturbed driver takes, in seconds: what kills are spread over."""

    warden: float
    """From `begin` to the warden."""
    fork: float
    """From `begin` to the first worker."""
    function: float
    """From `begin` to the first line of a train function."""
    returned: float
    """From `begin` to the end of the last train function."""
    end: float

    def to_end(self, event: str) -> float:
        return self.end - {"begin": 0.0, "warden": self.warden, "fork": self.fork}[event]


@dataclass
class Report:
    """The outcome of an experiment."""

    number: int
    workload: str
    target: str
    kills: list[Kill]
    settings: Settings
    lives: list[Life] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    temporary: list[str] = field(default_factory=list)
    """What is left in TMPDIR."""

    @property
    def landed(self) -> bool:
        """The first kill met a live process."""
        return bool(self.lives[0].killed)

    def save(self) -> None:
        values = {**asdict(self), "landed": self.landed}
        (Path(self.settings.place) / "report.json").write_text(json.dumps(values, indent=1))


def draw_kill(chance: random.Random, settings: Settings, target: str, course: Course) -> Kill:
    """A third within 50 ms of a start, a third while functions train, a third anywhere in the driver's life."""
    early = {"driver": ("fit", "fork"), "rank": ("fork",), "warden": ("warden", "fork"), "both": ("warden", "fork")}
    choice = chance.randrange(1000)
    third = chance.randrange(3)
    if third == 0:
        after = chance.choice(early[target])
        nth = chance.randint(1, TRIALS if settings.workload == "search" else settings.workers) if after == "fork" else 1
        return Kill(target, after, nth, chance.random() * EARLY_S, choice)
    if third == 1:
        return Kill(target, "function", 1, chance.random() * (course.returned - course.function), choice)
    after = {"driver": "begin", "rank": "fork"}.get(target, "warden")
    return Kill(target, after, 1, chance.random() * course.to_end(after), choice)


def draw_settings(chance: random.Random, place: Path, workload: str, dataset: Path) -> Settings:
    kept: list[dict[str, Any]] = [{}, {}, {"num_to_keep": 2}, {"keep_all_ranks": True}, {"async_save": True}]
    return Settings(
        place=str(place),
        workload=workload,
        workers=chance.choice([1, 2, 2]),
        acknowledged=chance.random() < 0.5,
        large=chance.random() < 1 / 3,
        strays=chance.random() < 1 / 3,
        checkpoints=chance.choice(kept),
        dataset=str(dataset),
    )


def experiment(
    number: int, seed: str, workload: str, target: str, course: Course, scratch: Path, limit: float
) -> Report:
    """Run one experiment and judge it. Its directory is removed if nothing is wrong with it."""
    chance = random.Random(f"{seed}-{number}")
    place = scratch / f"{number:05d}-{workload}-{target}"
    place.mkdir()
    settings = draw_settings(chance, place, workload, scratch / "dataset")
    kills = [draw_kill(chance, settings, target, course)]
    if chance.random() < 0.2:  # the resuming driver is killed too
        again = Kill(target, "retry", 1, chance.random() * EARLY_S, chance.randrange(1000))
        kills.append(draw_kill(chance, settings, target, course) if target in ("driver", "both") else again)
    report = Report(number, workload, target, kills, settings)
    settings.save()
    mark = f"kills{uuid4().hex[:12]}"
    try:
        for own in [[kill] for kill in kills] + [[]] if target in ("driver", "both") else [kills]:
            report.lives.append(life := live(settings, mark, own, limit))
            if "driver" not in life.killed:
                break
            report.findings += judge_checkpoints(settings)
        report.findings += judge(settings, report.lives)
    except Exception:  # files that nobody has thought of must not cost a campaign its other results
        report.findings.append(Finding("wrong errors", f"it cannot be judged:\n{traceback.format_exc()}"))
    finally:
        processes.kill_marked(mark)
    report.temporary = sorted(path.name for path in (place / "tmp").iterdir())
    report.save()
    if not report.findings:
        shutil.rmtree(place)
    return report


def live(
    settings: Settings, mark: str, kills: Sequence[Kill], limit: float, watch: Callable[[Scene], None] | None = None
) -> Life:
    """One driver from its start to its end, with its processes gone (or counted as strays)."""
    life = Life(ended_trials=trials_that_ended(settings), started_ns=time.monotonic_ns())
    started = time.monotonic()
    scene = Scene(Path(settings.place), mark, ["-m", "benchmarks.kills_driver", f"{settings.place}/settings.json"])
    try:
        for kill in kills:
            killed = scene.strike(kill)
            life.killed += [target for target, _ in killed]
            life.killed_ranks += [pid for target, pid in killed if target == "rank"]
        if watch is not None:
            watch(scene)
        try:
            life.exit = scene.process.wait(limit)
        except subprocess.TimeoutExpired:
            life.stacks = scene.stacks()
            processes.kill_marked(mark)
            scene.process.wait()
    finally:
        scene.close()
    life.seconds = time.monotonic() - started
    life.output = scene.output()
    # Nobody of ours is alive after a double kill: what a worker had started is swept by the next driver.
    if life.exit is not None and not (settings.strays and "warden" in life.killed and "driver" in life.killed):
        life.strays = strays(mark)
    return life


class Scene:
    """A driver process, as it is seen from outside."""

    def __init__(self, place: Path, mark: str, arguments: Sequence[str]) -> None:
        self.place = place
        self.mark = mark
        self._pipe, write = os.pipe()
        self._unread = b""
        self._told: set[str] = set()
        self._old_diaries = self._diaries()
        self._struck: set[int] = set()
        """The workers that were there at the last kill."""
        for folder in ("tmp", "runtime"):
            (self.place / folder).mkdir(mode=0o700, exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PACELINE_", "RAY_"))}
        ours = {
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.place),
            "TMPDIR": str(self.place / "tmp"),
            "XDG_RUNTIME_DIR": str(self.place / "runtime"),
            "KILLS_PIPE": str(write),
            "KILLS_MARK": mark,
        }
        try:
            with (self.place / "output.txt").open("ab") as output:
                self.process = subprocess.Popen(
                    [sys.executable, *arguments],
                    env={**kept, **ours},
                    cwd=self.place,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[write],
                    start_new_session=True,
                )
        finally:
            os.close(write)

    def close(self) -> None:
        os.close(self._pipe)

    def next_told(self, timeout: float = PATIENCE_S) -> str | None:
        """The next line from the driver; None if it ends, or writes nothing in time."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._unread:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._pipe], [], [], left)[0] or not (told := os.read(self._pipe, 4096)):
                return None
            self._unread += told
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def wait_until_told(self, moment: str) -> bool:
        """False if the driver ends without coming there."""
        while moment not in self._told:
            if (told := self.next_told()) is None:
                return False
            self._told.add(told)
        return True

    def warden(self) -> int | None:
        for pid in children(self.process.pid):
            with suppress(OSError):
                if _is_boot(pid):
                    return pid
        return None

    def ranks(self) -> list[int]:
        """The workers: children of the warden that are not adopted orphans."""
        warden = self.warden()
        return sorted(pid for pid in children(warden) if _is_worker(pid, warden)) if warden else []

    def _diaries(self) -> set[str]:
        """One file for each process in which a train function has started."""
        with suppress(FileNotFoundError):
            return set(os.listdir(self.place / "marks"))
        return set()

    def wait_for(self, look: Callable[[], Any]) -> bool:
        """Until `look` gives something true; False if the driver ends before."""
        while not look():
            if self.process.poll() is not None:
                return False
            time.sleep(LOOK_S)
        return True

    def wait_for_event(self, after: str, nth: int = 1) -> bool:
        if after in ("begin", "fit"):
            return self.wait_until_told(after)
        if not self.wait_until_told("begin"):
            return False
        if after == "warden":
            return self.wait_for(self.warden)
        if after == "function":
            return self.wait_for(lambda: self._diaries() - self._old_diaries)
        if after == "retry":
            return self.wait_for(lambda: set(self.ranks()) - self._struck)
        seen: set[int] = set()

        def enough() -> bool:
            seen.update(children(warden) if (warden := self.warden()) else ())
            return len(seen) >= nth

        return self.wait_for(enough)

    def strike(self, kill: Kill) -> list[tuple[str, int]]:
        """Kill what the kill says, at its moment or as soon as there is one; what was met alive."""
        if not self.wait_for_event(kill.after, kill.nth):
            return []
        time.sleep(kill.delay)
        self._struck.update(self.ranks())
        victims: list[tuple[str, int]] = []
        if kill.target in ("warden", "both"):
            if not self.wait_for(self.warden):
                return []
            victims.append(("warden", self.warden() or 0))
        if kill.target == "rank":
            if not self.wait_for(self.ranks):
                return []
            ranks = self.ranks()
            victims += [("rank", ranks[kill.choice % len(ranks)])] if ranks else []
        if kill.target in ("driver", "both"):
            victims.insert(kill.choice % 2, ("driver", self.process.pid))
        return [(target, pid) for target, pid in victims if sigkill(pid)]

    def stacks(self) -> str:
        """Where a hanging driver is, and which of its processes live."""
        with suppress(ProcessLookupError):
            self.process.send_signal(STACKS_SIGNAL)
        time.sleep(0.5)
        family = [f"{pid} {describe(pid)}" for pid in processes.marked(self.mark)]
        return (self.place / "stacks.txt").read_text() + "\nits processes:\n" + "\n".join(family)

    def output(self) -> str:
        return (self.place / "output.txt").read_text(errors="replace")


def sigkill(pid: int) -> bool:
    """False if there is no such process any more, or only its exit status."""
    try:
        if describe(pid).startswith(("Z", "X")):
            return False
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def children(pid: int) -> list[int]:
    """By the kernel's own lists: a look that costs microseconds."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def _is_worker(pid: int, warden: int) -> bool:
    """A worker leads a session, once it has left the warden's; an orphan is in another one, or another program."""
    try:
        return os.getsid(pid) in (pid, os.getsid(warden)) and _is_boot(pid)
    except OSError:
        return False


def _is_boot(pid: int) -> bool:
    return b"engine/local/boot.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def describe(pid: int) -> str:
    """State and command line."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return f"{state} {Path(f'/proc/{pid}/cmdline').read_text()}".replace("\0", " ").strip()
    except OSError:
        return "gone"


def strays(mark: str) -> list[str]:
    """Which processes of a driver that has ended are there a second later, and whether they go at all."""
    deadline = time.monotonic() + SECONDS_TO_GO
    while left := processes.marked(mark):
        if time.monotonic() > deadline:
            described = {pid: describe(pid) for pid in left}
            time.sleep(2 * SECONDS_TO_GO)
            staying = processes.marked(mark)
            return [f"{pid} ({'stays' if pid in staying else 'late'}) {text}" for pid, text in described.items()]
        time.sleep(0.02)
    return []
