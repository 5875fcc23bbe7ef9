"""A remote store that holds uploads of checkpoints back until a test opens the gate, and a program that uses it."""

from __future__ import annotations

import sys
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from paceline.air import Checkpoint, RunConfig, ScalingConfig, session
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer


class GatedStore(LocalFileSystem):  # type: ignore[misc]
    """Files in a directory, reached like a remote store."""

    protocol = "gated"
    root_marker = "/"
    cachable = False
    marks: Marks | None = None

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return LocalFileSystem._strip_protocol(str(path).removeprefix("gated://"))

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        if self.marks is not None and "checkpoint_" in rpath:
            self.marks.say("uploading", to=rpath)
            self.marks.pass_gate("upload")
        super().put_file(lpath, rpath, *args, **kwargs)


def counting(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    start = checkpoint.to_dict()["step"] if checkpoint else 0
    for step in range(start + 1, config["steps"] + 1):
        session.report({"iteration": step}, checkpoint=Checkpoint.from_dict({"step": step}))


def main(place: str, marks: str) -> None:
    store = GatedStore()
    store.marks = Marks(marks)
    run_config = RunConfig(name="gated", storage_path=place, storage_filesystem=store, verbose=0)
    DataParallelTrainer(
        counting,
        train_loop_config={"steps": 1_000_000},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run_config,
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
