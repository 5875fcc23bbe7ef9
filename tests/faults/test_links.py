"""E13: symbolic links, in the storage path and in checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, session
from paceline.run.callbacks import Callback
from paceline.testing.invariants import check_run, committed_checkpoints
from paceline.testing.scripts import make_trainer, read_state
from tests.faults.cases import mostly_slow
from tests.faults.laboratory import Laboratory


def test_a_link_in_the_storage_path_is_followed_once(lab: Laboratory) -> None:
    """E13: the run stays where the link led when it began, though the link is changed in the middle of it."""
    there, elsewhere, link = lab.root / "there", lab.root / "elsewhere", lab.root / "link"
    there.mkdir()
    elsewhere.mkdir()
    link.symlink_to(there)

    class Redirects(Callback):
        def on_checkpoint(self, iteration: int, trials: Any, trial: Any, checkpoint: Any, **info: Any) -> None:
            if iteration == 2:
                link.unlink()
                link.symlink_to(elsewhere)

    lab.storage = link
    result = make_trainer(lab.plan(iterations=4), callbacks=[Redirects()]).fit()
    assert Path(result.path).is_relative_to(there)
    check_run(result.path, result=result, iterations=4, attempts=1)
    assert [read_state(path) for path in committed_checkpoints(Path(result.path))] == [1, 2, 3, 4]
    assert list(elsewhere.iterdir()) == []
    again = make_trainer(lab.plan(iterations=6).continued(result.path)).fit()
    assert again.path == result.path


LINKS = {
    "inside": "weights.bin",
    "a directory inside": "nested",
    "outside": "/etc/hostname",
    "outside, relatively": "../outside.bin",
    "loop": "link",
    "loop through a directory": "..",
    "dangling": "nowhere.bin",
}


def save_link(config: dict[str, Any]) -> None:
    place = Path.cwd() / "mine"
    (place / "nested").mkdir(parents=True)
    (place.parent / "outside.bin").write_bytes(b"not part of it")
    (place / "weights.bin").write_bytes(b"weights")
    (place / "nested" / "more.bin").write_bytes(b"more")
    folder = place / "nested" if config["target"] == ".." else place
    os.symlink(config["target"], folder / "link")
    session.report({"iteration": 1}, checkpoint=Checkpoint.from_directory(str(place)))


@pytest.mark.parametrize("in_background", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", mostly_slow(["inside", "a directory inside"], everyday=["inside"]))
def test_a_link_to_something_inside_becomes_what_it_points_at(lab: Laboratory, kind: str, in_background: bool) -> None:
    """E13: in the checkpoint it is a file, so that the checkpoint can be copied anywhere."""
    config = CheckpointConfig(async_save=in_background)
    trainer = lab.trainer(save_link, workers=1, config={"target": LINKS[kind]}, checkpoint_config=config)
    result = trainer.fit()
    check_run(result.path, result=result, iterations=1, attempts=1)
    assert result.checkpoint is not None
    saved = Path(str(result.checkpoint.path))
    assert not [path for path in saved.rglob("*") if path.is_symlink()]
    if kind == "inside":
        assert (saved / "link").read_bytes() == b"weights"
    else:
        assert (saved / "link" / "more.bin").read_bytes() == b"more"


@pytest.mark.parametrize("in_background", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind",
    mostly_slow(
        ["outside", "outside, relatively", "loop", "loop through a directory", "dangling"],
        everyday=["outside, relatively"],
    ),
)
def test_any_other_link_is_an_error_that_names_it(lab: Laboratory, kind: str, in_background: bool) -> None:
    """E13: outside, in a loop or to nothing: no checkpoint, and no file of somebody else in the storage."""
    config = CheckpointConfig(async_save=in_background)
    error = lab.failure_of(save_link, workers=1, config={"target": LINKS[kind]}, checkpoint_config=config)
    assert "/link" in str(error)
    assert error.result is not None
    assert error.result.checkpoint is None
    assert committed_checkpoints(Path(error.result.path)) == []
