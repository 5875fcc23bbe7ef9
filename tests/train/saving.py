"""A train loop that saves a tree of files at each step, and the proof that all of them are there."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

from paceline.air import Checkpoint, Result, session

SIZE = 9 << 20
"""Of one file: more than two messages carry."""
STEPS = 4


def saving(config: dict[str, Any]) -> None:
    """Continue from the checkpoint, save a tree of files at each step, and see it on every rank."""
    rank = session.get_world_rank()
    start = session.get_checkpoint()
    step = 0
    if start is not None:
        with start.as_directory() as folder:
            step = int(Path(folder, "step").read_text())
            assert Path(folder, "deep", "large").stat().st_size == SIZE
            assert Path(folder, "deep", "empty").is_dir()
    while step < STEPS:
        step += 1
        if config.get("fails_at") == step and start is None:
            raise RuntimeError("injected")
        if config.get("dies_at") == step and start is None and rank == session.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        own = Path(f"own-{step}")
        (own / "deep" / "empty").mkdir(parents=True, exist_ok=True)
        (own / "step").write_text(str(step))
        (own / "deep" / "large").write_bytes(bytes([step]) * SIZE)
        (own / "nothing").touch()
        if os.environ.get("ODD_NAMES"):
            os.close(os.open(os.fsencode(own) + b"/not \xff text", os.O_CREAT | os.O_WRONLY, 0o640))
        if config.get("all_ranks"):
            (own / f"of-rank-{rank}").write_text(str(rank))
        facts = {"step": step, "started": 0 if start is None else 1, "cwd": os.getcwd(), "host": socket.gethostname()}
        session.report(facts, checkpoint=Checkpoint.from_directory(own))
        seen = session.get_checkpoint()
        if not config.get("in_background"):
            assert seen is not None
            with seen.as_directory() as folder:
                assert Path(folder, "step").read_text() == str(step)
        if config.get("one_step_per_attempt") and step < STEPS:
            raise RuntimeError("injected")
    if config.get("all_ranks"):
        kept = session.get_all_reported_checkpoints()
        assert [each.metrics["step"] for each in kept] == list(range(1, STEPS + 1))
        for each in kept:
            with each.checkpoint.as_directory() as folder:
                assert int(Path(folder, "step").read_text()) == each.metrics["step"]


def check(result: Result, step: int = STEPS) -> None:
    assert result.error is None
    checkpoint = result.checkpoint
    assert checkpoint is not None
    checkpoint.verify()
    with checkpoint.as_directory() as folder:
        assert Path(folder, "step").read_text() == str(step)
        assert Path(folder, "deep", "large").read_bytes() == bytes([step]) * SIZE
        assert Path(folder, "nothing").read_bytes() == b""
        assert Path(folder, "deep", "empty").is_dir()
