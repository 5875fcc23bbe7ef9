"""Creating, finding and reopening a trial's directory."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.air import CheckpointConfig, FailureConfig
from paceline.air.errors import ConfigError, RunLockedError, StorageError
from paceline.air.process import boot_id
from paceline.air.settings import as_json
from paceline.engine.local import drivers
from paceline.engine.local.engine import LocalEngine
from paceline.run import run_files
from paceline.run.found_runs import find_run_dirs
from paceline.run.records import Header, RunRecords
from paceline.run.spec import TrialPlace
from paceline.storage.journal import Journal
from paceline.storage.run_dir import RunDir
from paceline.testing.processes import process
from tests.descriptors import open_descriptors
from tests.run.run_specs import nothing, spec


def test_a_new_trial(results_dir: Path) -> None:
    description = spec(name="experiment", config={"train_loop_config": {"lr": 0.1}})
    files = run_files.create(description, LocalEngine.capabilities)
    assert files.run_dir.root == results_dir / "experiment" / f"Trainer_{description.identity.trial_id}_0"
    assert files.records is None
    assert files.attempts_so_far == 0
    assert files.ended_as is None
    files.close()
    (header,) = RunRecords.read(files.run_dir)
    assert isinstance(header, Header)
    assert header.settings["config"] == {"train_loop_config": {"lr": 0.1}}
    assert header.settings["scaling_config"]["num_workers"] == 2


def test_without_a_name_the_experiment_is_named_after_trainer_and_time(results_dir: Path) -> None:
    files = run_files.create(spec(), LocalEngine.capabilities)
    files.close()
    assert files.experiment_name.startswith("Trainer_20")


def test_saved_settings_are_plain_data() -> None:
    saved = run_files.saved_settings(
        spec(
            config={"train_loop_config": {"function": nothing}},
            checkpoint_config=CheckpointConfig(num_to_keep=3, checkpoint_score_attribute="loss"),
            failure_config=FailureConfig(max_failures=2),
            stop={"loss": 1},
        )
    )
    assert json.loads(json.dumps(saved)) == saved
    assert saved["config"] is None
    assert saved["run_config"]["checkpoint_config"]["num_to_keep"] == 3


def test_only_one_driver_at_a_time(results_dir: Path) -> None:
    files = run_files.create(spec(name="experiment"), LocalEngine.capabilities)
    path = str(files.run_dir.root)
    with pytest.raises(RunLockedError):
        run_files.reopen(spec(restore=path))
    files.close()
    again = run_files.reopen(spec(restore=path))
    assert again.identity == files.identity
    assert again.experiment_name == "experiment"
    again.close()


def test_an_engine_that_was_not_given_again_is_named(results_dir: Path) -> None:
    engine = SimpleNamespace(name="tcp", start_group=nothing)
    files = run_files.create(spec(name="experiment", engine=engine), LocalEngine.capabilities)
    files.close()
    for now, expected in [("local", ["engine 'tcp'; it continues on 'local'"]), ("tcp", [])]:
        again = run_files.reopen(spec(restore=str(files.run_dir.root)), engine=now)
        again.close()
        assert len(again.notes) == len(expected)
        assert all(part in note for part, note in zip(expected, again.notes, strict=True))


def test_the_lock_is_given_back_even_if_the_storage_has_gone(results_dir: Path) -> None:
    class GoneMirror:
        lease = SimpleNamespace(failing="")

        released = False
        run_dir = RunDir(results_dir)
        filesystem = SimpleNamespace(label="s3://bucket/trial")

        def push_state(self, *, complete: bool = False) -> None:
            raise StorageError(5, "the storage has gone")

        def release(self) -> None:
            self.released = True

    files = run_files.create(spec(name="experiment"), LocalEngine.capabilities)
    mirror: Any = GoneMirror()
    files.mirror = mirror
    (warning,) = files.close()  # the result of the run is not lost for it
    assert "the storage has gone" in warning
    assert mirror.released
    run_files.reopen(spec(restore=str(files.run_dir.root))).close()


class TestDirectoryThatASearchChose:
    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        return tmp_path / "search" / "trial"

    def create(self, directory: Path) -> None:
        place = TrialPlace(directory, "search")
        run_files.create(dataclasses.replace(spec(), place=place), LocalEngine.capabilities).close()

    def test_what_barely_began_is_removed(self, directory: Path) -> None:
        (directory / "logs").mkdir(parents=True)
        (directory / "journal.jsonl").write_bytes(b"half a rec")
        self.create(directory)
        assert [path.name for path in directory.parent.iterdir()] == ["trial"]

    def test_anything_else_is_put_aside(self, directory: Path) -> None:
        (directory / "checkpoint_000000").mkdir(parents=True)
        self.create(directory)
        assert (directory.parent / "trial.corrupt" / "checkpoint_000000").is_dir()
        assert find_run_dirs(directory.parent)[0].root == directory

    def test_a_run_is_never_replaced(self, directory: Path) -> None:
        directory.parent.mkdir()
        self.create(directory)
        with pytest.raises(StorageError, match=r"search/trial.*run already"):
            self.create(directory)

    def test_a_search_whose_directory_is_gone_does_not_get_a_new_one(self, directory: Path) -> None:
        with pytest.raises(StorageError, match="search/trial"):
            self.create(directory)
        assert not directory.parent.exists()


def test_reopening_sweeps_what_the_last_driver_left(results_dir: Path) -> None:
    files = run_files.create(spec(name="experiment"), LocalEngine.capabilities)
    files.close()
    leftover = files.run_dir.staging(3, 0)
    leftover.mkdir()
    run_files.reopen(spec(restore=str(files.run_dir.root))).close()
    assert not leftover.exists()


@pytest.mark.parametrize("how", ["new", "again"])
def test_who_opens_a_run_ends_what_dead_drivers_left(results_dir: Path, how: str) -> None:
    code = (
        "import os, subprocess\nfrom paceline.engine.local import drivers\n"
        "sleep = subprocess.Popen(['sleep', '1000'], env={**os.environ, **drivers.mark()}, stdout=subprocess.DEVNULL)\n"
        "print(sleep.pid, flush=True)\nos._exit(0)"
    )
    files = run_files.create(spec(name="experiment"), LocalEngine.capabilities)
    files.close()
    left = process(int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout))
    assert left is not None
    if how == "new":
        files = run_files.create(spec(name="experiment"), LocalEngine.capabilities)
    else:
        files = run_files.reopen(spec(restore=str(files.run_dir.root)))
    assert not left.alive
    (warning,) = files.warnings
    assert "1 process" in warning
    runs = [run for driver in drivers.live_drivers() if driver.pid == os.getpid() for run in driver.runs]
    assert runs == [(files.identity.experiment_id, str(files.run_dir.root))]
    files.close()
    assert [driver.runs for driver in drivers.live_drivers() if driver.pid == os.getpid()] == [()]


def test_a_file_in_a_run_names_no_process_to_end(results_dir: Path) -> None:
    """Whoever gives away a run could write such a list into it."""
    files = run_files.create(spec(name="experiment"), LocalEngine.capabilities)
    files.close()
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as innocent:
        facts = process(innocent.pid)
        assert facts is not None
        line = {"rank": 0, "attempt": 0, "pid": facts.pid, "start": facts.start, "boot": boot_id()}
        (files.run_dir.root / "processes.jsonl").write_text(json.dumps(line) + "\n")
        run_files.reopen(spec(restore=str(files.run_dir.root))).close()
        assert innocent.poll() is None
        innocent.kill()


def test_memory_storage_needs_the_inline_engine(results_dir: Path) -> None:
    with pytest.raises(ConfigError, match="engine='inline'"):
        run_files.create(spec(storage_path="memory://somewhere"), LocalEngine.capabilities)
    assert not results_dir.exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        run_files.create(spec(storage_path=str(tmp_path / "file" / "below")), LocalEngine.capabilities)


@pytest.mark.parametrize(
    ("value", "plain"),
    [({"a": [1, "x", None]}, {"a": [1, "x", None]}), ({"a": (1, 2)}, {"a": [1, 2]}), ({"a": nothing}, None), (7, 7)],
)
def test_plain_data(value: Any, plain: Any) -> None:
    assert as_json(value) == plain


def test_a_trial_id_that_is_taken_is_drawn_again(results_dir: Path) -> None:
    description = spec(name="experiment")
    first = run_files.create(description, LocalEngine.capabilities)
    first.close()
    second = run_files.create(description, LocalEngine.capabilities)
    second.close()
    assert second.run_dir.root != first.run_dir.root
    assert second.identity.trial_id != first.identity.trial_id
    assert second.identity.trial_id.endswith("_00000")
    assert len(second.identity.trial_id) == len(first.identity.trial_id)
    assert RunRecords.read(second.run_dir).header.trial_id == second.identity.trial_id
    assert len(list(RunRecords.read(first.run_dir))) == 1


def test_nothing_stays_open_if_creating_is_interrupted(results_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(journal: Journal) -> None:
        raise KeyboardInterrupt

    before = open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_files.create(spec(name="experiment"), LocalEngine.capabilities)
    assert not open_descriptors() - before
    assert not [thread for thread in threading.enumerate() if thread.name == "paceline-journal"]


def test_only_the_end_of_the_newest_sibling_is_read(results_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        run_files.create(spec(name="experiment"), LocalEngine.capabilities).close()
    monkeypatch.delattr(RunRecords, "read")
    files = run_files.create(spec(name="experiment"), LocalEngine.capabilities)
    files.close()
    assert "did not finish" in files.notes[0]


def test_a_sibling_that_is_still_running_is_not_to_be_restored(results_dir: Path) -> None:
    live = run_files.create(spec(name="experiment"), LocalEngine.capabilities)
    files = run_files.create(spec(name="experiment"), LocalEngine.capabilities)
    files.close()
    live.close()
    (note,) = files.notes
    assert f"is still running (pid {os.getpid()})" in note
    assert "restore" not in note
    assert "resume" not in note
