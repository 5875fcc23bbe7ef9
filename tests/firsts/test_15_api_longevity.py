"""Programs of three generations of the API run side by side, and a ported one is a diff away.

The examples of the documentation that the API comes from are in tests/parity.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.air import RunConfig, ScalingConfig
from paceline.train import DataParallelTrainer

CONFIG = {"scaling_config": ScalingConfig(num_workers=2), "run_config": RunConfig(verbose=0)}


def first_generation() -> None:
    from paceline import train

    checkpoint = train.load_checkpoint() or {}
    for epoch in range(checkpoint.get("epoch", -1) + 1, 3):
        train.save_checkpoint(epoch=epoch)
        train.report(epoch=epoch, rank=train.world_rank(), size=train.world_size())


def second_generation() -> None:
    from paceline.air import Checkpoint, session

    checkpoint = session.get_checkpoint()
    start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    for epoch in range(start, 3):
        metrics = {"epoch": epoch, "rank": session.get_world_rank(), "size": session.get_world_size()}
        session.report(metrics, checkpoint=Checkpoint.from_dict({"epoch": epoch}))


def third_generation() -> None:
    import tempfile

    from paceline import train
    from paceline.train import Checkpoint

    context, checkpoint, start = train.get_context(), train.get_checkpoint(), 0
    if checkpoint:
        with checkpoint.as_directory() as directory:
            start = int((Path(directory) / "epoch").read_text()) + 1
    for epoch in range(start, 3):
        metrics = {"epoch": epoch, "rank": context.get_world_rank(), "size": context.get_world_size()}
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "epoch").write_text(str(epoch))
            train.report(metrics, checkpoint=Checkpoint.from_directory(directory))


@pytest.mark.filterwarnings("ignore")  # the first generation is told what it is called today
@pytest.mark.parametrize("loop", [first_generation, second_generation, third_generation])
def test_each_generation_trains_saves_and_resumes(loop: Any) -> None:
    result = DataParallelTrainer(loop, **CONFIG).fit()
    assert list(result.metrics_dataframe["epoch"].dropna()) == [0, 1, 2]  # saving is a row of its own in the first
    assert (result.metrics["rank"], result.metrics["size"]) == (0, 2)
    assert len(result.best_checkpoints) == 3
    again = DataParallelTrainer(loop, resume_from_checkpoint=result.best_checkpoints[1][0], **CONFIG).fit()
    assert list(again.metrics_dataframe["epoch"].dropna()) == [2]


def test_porting_a_script_is_a_diff(tmp_path: Path) -> None:
    pytest.importorskip("libcst")
    script = tmp_path / "script.py"
    script.write_text("from ray.air import session\nfrom ray.train.torch import TorchTrainer\n")
    command = [sys.executable, "-m", "paceline.cli.main", "port", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "-from ray.air import session\n" in done.stdout
    assert "+from paceline.air import session\n" in done.stdout
    assert "+from paceline.train.torch import TorchTrainer\n" in done.stdout
    assert script.read_text().startswith("from ray.air"), "the file itself was changed"
