"""Weights & Biases offline: what is special about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.testing.tracker_contract import row, tracked_run
from paceline.trackers import RejectedError, TrackedCheckpoint
from paceline.trackers.wandb import WandbLoggerCallback, WandbTracker, key_in
from paceline.trackers.wandb_file import messages_in, rows_in
from tests.trackers.climbs import ROWS, trainer
from tests.trackers.readers import read_wandb
from tests.trackers.services import WANDB_QUIET

pytest.importorskip("wandb")
pytestmark = pytest.mark.usefixtures("wandb")


def tracker(place: Path, **options: Any) -> WandbTracker:
    init = {"project": "climbs", "dir": str(place), "settings": WANDB_QUIET, **options.pop("init", {})}
    return WandbTracker(init, **options)


def messages(place: Path, kind: str) -> Iterator[Any]:
    for path in place.glob("wandb/offline-run-*/*.wandb"):
        yield from (message for found, message in messages_in(path) if found == kind)


def test_a_run_has_its_names_its_group_and_its_files_in_the_directory_of_the_run(tmp_path: Path) -> None:
    from paceline.air.integrations.wandb import WandbLoggerCallback

    callback = WandbLoggerCallback(project="climbs", settings=WANDB_QUIET)
    result = trainer([callback], tmp_path, lr=0.1).fit()
    (found,) = read_wandb(Path(result.path))
    assert [row.step for row in found.rows] == [*range(1, ROWS + 1)]
    assert found.config["train_loop_config/lr"] == "0.1"
    (run,) = {message.run_id: message for message in messages(Path(result.path), "run")}.values()
    assert (run.run_group, run.project, run.display_name) == ("climbs", "climbs", found.name)
    assert run.run_id.startswith(found.config["trial_id"])


def test_metrics_can_be_left_out_and_the_configuration_added(tmp_path: Path) -> None:
    subject = tracker(tmp_path, excludes=["time_total_s", "debug"], log_config=True)
    run_id = subject.open(tracked_run(path=str(tmp_path)), None)
    subject.send(run_id, [row(0, debug={"a": 1}, debugging=2)])
    subject.change_config(run_id, {"speed": 5}, attempt=1)
    subject.send(run_id, [row(1)])
    subject.close(run_id, "finished")
    (found,) = read_wandb(tmp_path)
    names = found.rows[0].values.keys()
    assert {"height", "debugging"} <= names
    assert not {"time_total_s", "debug/a"} & names
    assert [each.values["config/speed"] for each in found.rows] == [0, 5]


def test_rows_have_the_time_of_their_report(tmp_path: Path) -> None:
    subject = tracker(tmp_path)
    run_id = subject.open(tracked_run(path=str(tmp_path)), None)
    subject.send(run_id, [row(0), row(1)])
    subject.close(run_id, "finished")
    (found,) = read_wandb(tmp_path)
    assert [each.values["_timestamp"] for each in found.rows] == [row(0).time, row(1).time]


def test_what_a_file_has_is_known_to_the_next_driver(tmp_path: Path) -> None:
    first = tracker(tmp_path)
    run_id = first.open(tracked_run(path=str(tmp_path)), None)
    assert first.received(run_id) == 0
    first.send(run_id, [row(0), row(1), row(2)])
    assert first.received(run_id) == 3
    first.close(run_id, "interrupted")
    assert rows_in(tmp_path, run_id) == 3
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 2 // 3])  # as a killed driver leaves it
    kept = rows_in(tmp_path, run_id)
    assert 0 <= kept < 3
    second = tracker(tmp_path)
    second.open(tracked_run(path=str(tmp_path)), run_id)
    assert second.received(run_id) == kept
    second.close(run_id, "finished")


def test_checkpoints_become_artifacts(tmp_path: Path) -> None:
    subject = tracker(tmp_path, upload_checkpoints=True)
    assert subject.wants_checkpoints
    run_id = subject.open(tracked_run(path=str(tmp_path)), None)
    path = tmp_path / "checkpoint_000000"
    path.mkdir()
    (path / "weights.txt").write_text("0.5")
    subject.add_checkpoint(run_id, TrackedCheckpoint(number=0, iteration=1, attempt=0, path=path))
    subject.close(run_id, "finished")
    (artifact,) = messages(tmp_path, "artifact")
    assert artifact.name == "checkpoint_climb_4913f_00000"
    assert [entry.path for entry in artifact.manifest.contents] == ["weights.txt"]


def test_the_environment_names_project_and_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT_NAME", "project of the team")
    monkeypatch.setenv("WANDB_GROUP_NAME", "group of the team")
    subject = WandbTracker({"dir": str(tmp_path), "settings": WANDB_QUIET})
    subject.close(subject.open(tracked_run(path=str(tmp_path)), None), "finished")
    run = next(messages(tmp_path, "run"))
    assert (run.project, run.run_group) == ("project of the team", "group of the team")


def test_online_without_a_key_is_rejected_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    subject = tracker(tmp_path, init={"mode": "online"})
    with pytest.raises(RejectedError, match="WANDB_API_KEY"):
        subject.open(tracked_run(path=str(tmp_path)), None)


def test_a_key_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k-123\n")
    assert key_in(None, str(tmp_path / "key")) == "k-123"
    with pytest.raises(ConfigError, match="api_key_file"):
        key_in(None, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="both"):
        key_in("k", str(tmp_path / "key"))


def test_a_wrong_mode_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"mode='ofline' is not a mode of W&B: give online, offline"):
        WandbLoggerCallback(mode="ofline")
