"""Creating, finding and reopening a trial's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.air import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.air.errors import ConfigError, RestoreError, RunLockedError, StorageError
from paceline.run import trial_files
from paceline.run.spec import RunSpec, TrainFunction, TrialIdentity


def nothing() -> None:
    """Never run here."""


def spec(restore: str | None = None, config: Any = None, **run_config: Any) -> RunSpec:
    return RunSpec(
        trainer_name="Trainer",
        train=TrainFunction(nothing),
        config=config or {},
        scaling=ScalingConfig(num_workers=2),
        run_config=RunConfig(**run_config),
        restore_path=restore,
        identity=TrialIdentity.new(),
    )


def test_a_new_trial(results_dir: Path) -> None:
    description = spec(name="experiment", config={"train_loop_config": {"lr": 0.1}})
    files = trial_files.create(description, "local")
    assert files.run_dir.root == results_dir / "experiment" / f"Trainer_{description.identity.trial_id}_0"
    assert files.records == []
    assert files.attempts_so_far == 0
    assert files.ended_as is None
    files.close()
    (header,) = trial_files.state_records(files.run_dir)
    assert header["settings"]["config"] == {"train_loop_config": {"lr": 0.1}}
    assert header["settings"]["num_workers"] == 2


def test_without_a_name_the_experiment_is_named_after_trainer_and_time(results_dir: Path) -> None:
    files = trial_files.create(spec(), "local")
    files.close()
    assert files.experiment_name.startswith("Trainer_20")


def test_saved_settings_are_plain_data() -> None:
    saved = trial_files.saved_settings(
        spec(
            config={"train_loop_config": {"function": nothing}},
            checkpoint_config=CheckpointConfig(num_to_keep=3, checkpoint_score_attribute="loss"),
            failure_config=FailureConfig(max_failures=2),
            stop={"loss": 1},
        )
    )
    assert json.loads(json.dumps(saved)) == saved
    assert saved["config"] is None
    assert (saved["num_to_keep"], saved["checkpoint_score_attribute"], saved["max_failures"]) == (3, "loss", 2)


def test_only_one_driver_at_a_time(results_dir: Path) -> None:
    files = trial_files.create(spec(name="experiment"), "local")
    path = str(files.run_dir.root)
    with pytest.raises(RunLockedError):
        trial_files.reopen(spec(restore=path))
    files.close()
    again = trial_files.reopen(spec(restore=path))
    assert again.identity == files.identity
    assert again.experiment_name == "experiment"
    again.close()


def test_the_lock_is_given_back_even_if_the_storage_has_gone(results_dir: Path) -> None:
    class GoneMirror:
        released = False

        def push_state(self) -> None:
            raise StorageError(5, "the storage has gone")

        def release(self) -> None:
            self.released = True

    files = trial_files.create(spec(name="experiment"), "local")
    mirror: Any = GoneMirror()
    files.mirror = mirror
    with pytest.raises(StorageError, match="has gone"):
        files.close()
    assert mirror.released
    trial_files.reopen(spec(restore=str(files.run_dir.root))).close()


@pytest.mark.parametrize(
    ("kinds", "ended"),
    [
        (["run"], None),
        (["run", "attempt"], None),
        (["run", "attempt", "end"], "finished"),
        (["run", "attempt", "end", "attempt"], None),
        (["run", "attempt", "checkpoint", "failure", "attempt", "end"], "finished"),
    ],
)
def test_how_a_run_ended(kinds: list[str], ended: str | None) -> None:
    assert trial_files.ending([{"kind": kind, "status": "finished"} for kind in kinds]) == ended


def test_a_journal_that_does_not_begin_with_a_run(tmp_path: Path) -> None:
    from paceline.storage.journal import Journal
    from paceline.storage.run_dir import RunDir

    run_dir = RunDir(tmp_path)
    with pytest.raises(RestoreError, match="holds no run"):
        trial_files.state_records(run_dir)
    journal = Journal(run_dir.journal)
    journal.append({"kind": "attempt", "attempt": 0})
    journal.close()
    with pytest.raises(RestoreError, match="does not begin with a run's description"):
        trial_files.state_records(run_dir)


def test_reopening_ends_and_sweeps_what_the_last_driver_left(results_dir: Path) -> None:
    import subprocess
    import sys

    from paceline.run import process_registry

    files = trial_files.create(spec(name="experiment"), "local")
    files.close()
    leftover = files.run_dir.staging(3, 0)
    leftover.mkdir()
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as orphan:
        process_registry.record(files.run_dir.processes, 0, {0: orphan.pid})
        again = trial_files.reopen(spec(restore=str(files.run_dir.root)))
        again.close()
        assert orphan.wait() == -9
    assert not leftover.exists()
    assert "Ended 1 worker process" in again.notes[0]


def test_memory_storage_needs_the_inline_engine(results_dir: Path) -> None:
    with pytest.raises(ConfigError, match="engine='inline'"):
        trial_files.create(spec(storage_path="memory://somewhere"), "local")
    assert not results_dir.exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        trial_files.create(spec(storage_path=str(tmp_path / "file" / "below")), "local")


@pytest.mark.parametrize(
    ("value", "plain"),
    [({"a": [1, "x", None]}, {"a": [1, "x", None]}), ({"a": (1, 2)}, {"a": [1, 2]}), ({"a": nothing}, None), (7, 7)],
)
def test_plain_data(value: Any, plain: Any) -> None:
    assert trial_files.as_json(value) == plain
