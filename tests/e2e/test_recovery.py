"""Whole stories: training that is interrupted in every way ends where undisturbed training ends."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig, session
from paceline.testing.invariants import check_run
from paceline.testing.processes import Driver, Marks

torch = pytest.importorskip("torch")

EPOCHS = 6


def train_classifier(config: dict[str, Any]) -> None:
    """Data-parallel training of a small classifier; deterministic, resumable at every epoch."""
    import torch

    from paceline.train.torch import prepare_model

    rank, world_size = session.get_world_rank(), session.get_world_size()
    torch.manual_seed(1)
    features = torch.randn(128, 8, generator=torch.Generator().manual_seed(2))
    labels = (features.sum(dim=1) > 0).long()
    mine = slice(rank, None, world_size)

    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    model = prepare_model(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = 1
    checkpoint = session.get_checkpoint()
    if checkpoint is not None:
        state = checkpoint.to_dict()
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    for epoch in range(first, config["epochs"] + 1):
        for _ in range(5):
            loss = torch.nn.functional.cross_entropy(model(features[mine]), labels[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if "die_at" in config and (epoch, rank) == config["die_at"] and Marks(config["marks"]).claim("death"):
            os.kill(os.getpid(), signal.SIGKILL)
        if epoch == config.get("wait_at"):
            Marks(config["marks"]).say("waiting", rank=rank)
            Marks(config["marks"]).pass_gate("worker")
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        session.report({"epoch": epoch, "loss": loss.item()}, checkpoint=Checkpoint.from_dict(state))


def classifier(storage: Path, *, failures: int = 0, resume: Checkpoint | None = None, **config: Any) -> Any:
    from paceline.train.torch import TorchTrainer

    return TorchTrainer(
        train_classifier,
        train_loop_config={"epochs": EPOCHS, **config},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(storage),
            verbose=0,
            failure_config=FailureConfig(max_failures=failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
        resume_from_checkpoint=resume,
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return classifier(tmp_path_factory.mktemp("undisturbed")).fit()


def assert_same_end(result: Result, undisturbed: Result) -> None:
    """Bit for bit the same weights and the same losses."""
    assert result.checkpoint is not None
    assert undisturbed.checkpoint is not None
    ours, theirs = result.checkpoint.to_dict(), undisturbed.checkpoint.to_dict()
    assert ours["epoch"] == theirs["epoch"] == EPOCHS
    for name, weight in theirs["model"].items():
        assert torch.equal(ours["model"][name], weight), f"{name} differs"
    assert result.metrics_dataframe["loss"].tolist() == undisturbed.metrics_dataframe["loss"].tolist()


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_worker(tmp_path: Path, undisturbed: Result, rank: int) -> None:
    result = classifier(tmp_path / "storage", failures=1, marks=str(tmp_path / "marks"), die_at=(4, rank)).fit()
    check_run(result.path, result=result, iterations=EPOCHS, attempts=2)
    assert_same_end(result, undisturbed)


def test_killed_driver(tmp_path: Path, undisturbed: Result) -> None:
    from paceline.train.torch import TorchTrainer

    marks = Marks(tmp_path / "marks")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            from pathlib import Path
            from tests.e2e.test_recovery import classifier
            classifier(Path({str(tmp_path / "storage")!r}), marks={str(marks.directory)!r}, wait_at=4).fit()
        """)
    )
    with Driver([str(script)], output=tmp_path / "driver.txt") as driver:
        marks.wait("waiting", 2)
        driver.kill()
        (trial_dir,) = [path.parent for path in (tmp_path / "storage").glob("*/*/journal.jsonl")]
        check_run(trial_dir, processes=driver.known(), swept=False)
    assert TorchTrainer.can_restore(str(trial_dir))
    result = TorchTrainer.restore(
        str(trial_dir), train_loop_per_worker=train_classifier, train_loop_config={"epochs": EPOCHS}
    ).fit()
    check_run(trial_dir, result=result, iterations=EPOCHS, attempts=2)
    assert_same_end(result, undisturbed)


def test_resumed_in_a_new_run(tmp_path: Path, undisturbed: Result) -> None:
    """A new run of its own: its rows start at 1, its checkpoints at the number after the loaded one."""
    first = classifier(tmp_path / "storage", epochs=3).fit()
    check_run(first.path, result=first, iterations=3, attempts=1)
    second = classifier(tmp_path / "storage", resume=first.checkpoint).fit()
    check_run(second.path, result=second, iterations=EPOCHS - 3, attempts=1)
    assert second.checkpoint is not None
    assert first.checkpoint is not None
    assert Path(first.checkpoint.path).name == "checkpoint_000002"
    assert Path(second.checkpoint.path).name == "checkpoint_000005"
    ours, theirs = second.checkpoint.to_dict(), undisturbed.checkpoint.to_dict()  # type: ignore[union-attr]
    assert all(torch.equal(ours["model"][name], weight) for name, weight in theirs["model"].items())


@pytest.mark.parametrize("kind", ["counter", pytest.param("classifier", marks=pytest.mark.slow)])
def test_interpreter_exit_right_after_fit_is_quiet(tmp_path: Path, kind: str) -> None:
    """The classifier imports torch in the driver, which has threads and exit handlers of its own."""
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        f"from tests.e2e.{'test_recovery' if kind == 'classifier' else 'counter'} import {kind}\n"
        f"print({kind}(Path({str(tmp_path / 'storage')!r}), epochs=1).fit().metrics['epoch'])\n"
    )
    with Driver(["-W", "error", str(script)], output=tmp_path / "driver.txt") as driver:
        assert driver.wait() == 0
        assert driver.text() == "1\n"
