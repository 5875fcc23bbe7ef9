"""What a run's journal says of it in one struct."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import RestoreError
from paceline.run.found_runs import RunSummary, summary_of
from paceline.run.history import load_result
from paceline.run.records import FORMAT, Ended, Reached
from paceline.storage.journal import Journal, encode_record
from paceline.storage.lock import RunLock
from paceline.storage.run_dir import RunDir
from paceline.train import DataParallelTrainer

OLD_RUNS = Path(__file__).parent / "fixtures" / "journals_1"


def steps(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    for step in range((checkpoint.to_dict()["step"] if checkpoint else 0) + 1, 7):
        saved = Checkpoint.from_dict({"step": step}) if step % 2 == 0 else None
        session.report({"loss": 1 / step}, checkpoint=saved)
        mark = Path(config["mark"])
        if step in config["fails"] and not mark.exists():
            mark.touch()
            raise ValueError(f"step {step} failed")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def fit(fails: tuple[int, ...] = (), max_failures: int = 0, storage: str = "", **checkpoints: Any) -> str:
        trainer = DataParallelTrainer(
            steps,
            train_loop_config={"mark": str(tmp_path / "mark"), "fails": list(fails)},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(
                name="experiment",
                storage_path=storage or str(tmp_path / "results"),
                verbose=0,
                engine="inline",
                failure_config=FailureConfig(max_failures=max_failures),
                checkpoint_config=CheckpointConfig(**checkpoints),
            ),
        )
        return trainer.fit(raise_on_error=False).path

    return fit


def test_the_summary_says_what_ranks_checkpoints_and_where_the_run_stops(tmp_path: Path) -> None:
    def steps() -> None:
        session.report({"loss": 1.0})

    def fit(stop: Any, **checkpoints: Any) -> RunSummary:
        config = RunConfig(
            storage_path=str(tmp_path),
            verbose=0,
            engine="inline",
            stop=stop,
            checkpoint_config=CheckpointConfig(**checkpoints),
        )
        scaling = ScalingConfig(num_workers=1)
        return summary_of(DataParallelTrainer(steps, scaling_config=scaling, run_config=config).fit().path)

    ranked = fit({"training_iteration": 9}, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    assert (ranked.score_attribute, ranked.score_order, ranked.most_iterations) == ("loss", "min", 9)
    plain = fit({"loss": 0.5})
    assert (plain.score_attribute, plain.score_order, plain.most_iterations) == (None, "max", None)


def without_end(path: str) -> Path:
    """The same run as if its driver had been killed at its last step."""
    journal = RunDir(Path(path)).journal
    records = [record for record in FORMAT.read(journal) if not isinstance(record, Ended)]
    journal.unlink()
    writer = Journal(journal)
    for record in records:
        writer.append_raw(encode_record(record, finite=False))
    writer.close()
    return journal


def test_a_finished_run(run: Any) -> None:
    path = run(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="max")
    summary = summary_of(path)
    assert (summary.status, summary.alive, summary.error) == ("finished", False, "")
    assert (summary.name, summary.trainer, summary.num_workers) == ("experiment", "DataParallelTrainer", 1)
    assert summary.path == path
    assert summary.ended is not None
    assert 0 < summary.started <= summary.ended
    assert summary.reached == Reached(
        iteration=6,
        time_total_s=summary.reached.time_total_s,
        attempts=1,
        world_size=1,
        metrics={"loss": 1 / 6},
        best={"loss": 1 / 2},
        checkpoints=[0, 1, 2],
        size=summary.reached.size,
    )
    assert summary.reached.size > 0
    assert summary.reached.time_total_s > 0


@pytest.mark.parametrize("fails", [(), (5,)])
def test_a_killed_run_has_reached_the_same(run: Any, fails: tuple[int, ...]) -> None:
    path = run(fails, max_failures=1, num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="max")
    finished = summary_of(path)
    without_end(path)
    killed = summary_of(path)
    assert (killed.status, killed.ended) == ("killed", None)
    assert finished.reached.error == ("rank 0: ValueError: step 5 failed" if fails else "")
    assert killed.error == killed.reached.error
    assert killed.reached == finished.reached


@pytest.mark.parametrize(
    ("counted", "shown"), [(7, 7), (0.5, 0.5), (2.0, 2.0), (math.nan, 0), (-math.inf, 0), ("seven", 0), (True, 0)]
)
def test_a_run_that_counts_its_iterations_by_itself(tmp_path: Path, counted: Any, shown: float) -> None:
    trainer = DataParallelTrainer(
        lambda: session.report({"training_iteration": counted}),
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0, engine="inline"),
    )
    path = trainer.fit().path
    assert summary_of(path).reached.iteration == shown
    assert load_result(path).status == "finished"


def test_the_end_of_a_run_that_an_earlier_version_could_not_read_back(tmp_path: Path) -> None:
    """It wrote a training_iteration down as it was."""
    shutil.copytree(OLD_RUNS / "run_killed", tmp_path / "run")
    journal = Journal(tmp_path / "run" / "journal.jsonl")
    journal.append({"kind": "end", "status": "finished", "reached": {"iteration": math.nan}}, finite=False)
    journal.close()
    assert math.isnan(summary_of(tmp_path / "run").reached.iteration)


def test_a_failed_run(run: Any) -> None:
    summary = summary_of(run((3,)))
    assert summary.status == "failed"
    assert summary.error.startswith("Training failed: rank 0: ValueError: step 3 failed")
    assert summary.reached.error == "rank 0: ValueError: step 3 failed"
    assert (summary.reached.iteration, summary.reached.checkpoints) == (3, [0])


def test_a_run_that_is_held_is_running(run: Any) -> None:
    path = run()
    without_end(path)
    with RunLock(RunDir(Path(path)).lock):
        summary = summary_of(path)
        assert (summary.status, summary.alive) == ("running", True)
    assert summary_of(path).status == "killed"


def test_a_retry_that_has_not_reported_yet(run: Any) -> None:
    path = Path(run((5,), max_failures=1))
    records = list(FORMAT.read(RunDir(path).journal))
    begun = next(position for position, record in enumerate(records) if getattr(record, "attempt", 0) == 1)
    RunDir(path).journal.unlink()
    writer = Journal(RunDir(path).journal)
    for record in records[: begun + 1]:
        writer.append(record)
    writer.close()
    reached = summary_of(path).reached
    assert (reached.iteration, reached.attempts, reached.metrics) == (4, 2, {"loss": 1 / 4})


@pytest.mark.parametrize(
    ("name", "status", "iteration", "attempts", "checkpoints", "loss"),
    [
        ("run_with_retry", "finished", 6, 2, [0, 1, 2], 1 / 6),
        ("run_num_to_keep", "finished", 8, 1, [6, 7], 1 / 8),
        ("run_failed", "failed", 3, 1, [0], 1 / 3),
        ("run_restored", "finished", 6, 2, [0, 1, 2], 1 / 6),
        ("run_killed", "killed", 6, 2, [0, 1], 1 / 6),
    ],
)
def test_runs_of_earlier_versions(
    name: str, status: str, iteration: int, attempts: int, checkpoints: list[int], loss: float
) -> None:
    summary = summary_of(OLD_RUNS / name)
    reached = summary.reached
    assert summary.status == status
    assert (reached.iteration, reached.attempts, reached.checkpoints) == (iteration, attempts, checkpoints)
    assert reached.metrics["loss"] == loss
    assert summary.started > 1_700_000_000
    assert (summary.ended is None) == (status == "killed")


def test_reading_changes_nothing(run: Any) -> None:
    path = Path(run())
    before = {file: os.stat(file).st_mtime_ns for file in path.rglob("*")}
    summary_of(path)
    assert {file: os.stat(file).st_mtime_ns for file in path.rglob("*")} == before


def test_a_finished_runs_rows_are_not_read(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run()
    decoded: list[bytes] = []
    decode = FORMAT.decode
    monkeypatch.setattr(FORMAT, "decode", lambda body, journal: decoded.append(body) or decode(body, journal))
    summary_of(path)
    assert len(decoded) == 2, "the header and the end are enough"


def test_metrics_that_look_like_records(tmp_path: Path) -> None:
    shutil.copytree(OLD_RUNS / "run_killed", tmp_path / "run")
    journal = Journal(tmp_path / "run" / "journal.jsonl")
    row = {"kind": "row", "attempt": 1, "index": 7, "rank": 0, "stamp": 1.0, "elapsed": 2.0}
    journal.append({**row, "metrics": {"odd": {"kind": "end", "rank": 0, "status": "finished"}, "a": "\n"}})
    journal.append({**row, "rank": 1, "metrics": {"odd": {"rank": 0, "b": 1}}})
    journal.close()
    summary = summary_of(tmp_path / "run")
    assert summary.status == "killed"
    assert summary.reached.iteration == 7


def test_a_place_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="no run"):
        summary_of(tmp_path)
    with pytest.raises(RestoreError, match=f"memory://nothing-{tmp_path.name} holds no run"):
        summary_of(f"memory://nothing-{tmp_path.name}")
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(RestoreError, match="begin"):
        summary_of(tmp_path)


def test_a_run_on_remote_storage(run: Any, tmp_path: Path) -> None:
    uri = f"memory://summary-{tmp_path.name}"
    path = run(storage=uri)
    summary = summary_of(path)
    assert isinstance(summary, RunSummary)
    assert (summary.path, summary.status, summary.alive) == (path, "finished", False)
    assert summary.reached.iteration == 6
