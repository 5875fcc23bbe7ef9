"""How long it takes to read a committed checkpoint of 200 MB, in turn with reading and hashing the same bytes by hand.

Argument: how many times.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

from benchmarks import workload
from paceline.storage.commit import commit
from paceline.storage.stager import Stager
from paceline.train import Checkpoint


def committed(here: Path) -> Path:
    source = workload.write_checkpoint(here / "source")
    with Stager(here / "staging") as stager:
        Checkpoint.from_directory(source).write_files(stager)
        stager.finish({})
    commit(here / "staging", here / "checkpoint")
    return here / "checkpoint"


def by_hand(checkpoint: Path, into: Path | None) -> None:
    """Read and hash every file; write it too, if it is to be copied."""
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    for path in sorted(checkpoint.glob("shard-*.bin")):
        hasher = xxhash.xxh3_128()
        with open(path, "rb", buffering=0) as file, open(into / path.name if into else os.devnull, "wb") as copy:
            while count := file.readinto(buffer):
                hasher.update(view[:count])
                if into is not None:
                    copy.write(view[:count])
        hasher.hexdigest()


def read(checkpoint: Path) -> None:
    with Checkpoint.from_directory(checkpoint).as_directory():
        pass


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main(repeats: int) -> None:
    here = workload.place()
    checkpoint = committed(here)
    figures: dict[str, list[float]] = {"read": [], "read_by_hand": [], "copied": [], "copied_by_hand": []}
    for step in range(repeats + 1):
        for path in checkpoint.iterdir():  # a process hashes a file once, unless it has changed
            os.utime(path, (step, step))
        (here / "by_hand").mkdir()
        values = {
            "read": seconds(lambda: read(checkpoint)),
            "read_by_hand": seconds(lambda: by_hand(checkpoint, None)),
            "copied": seconds(lambda: Checkpoint.from_directory(checkpoint).to_directory(here / "copy")),
            "copied_by_hand": seconds(lambda: by_hand(checkpoint, here / "by_hand")),
        }
        for place in ("copy", "by_hand"):
            shutil.rmtree(here / place)
        os.sync()
        for name, value in values.items() if step else ():  # the first round warms up
            figures[name].append(value)
    workload.write_out(figures)


if __name__ == "__main__":
    main(int(sys.argv[1]))
