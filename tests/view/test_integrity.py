from __future__ import annotations

from pathlib import Path

import pytest

from paceline.air import Checkpoint, RunConfig, ScalingConfig, session
from paceline.storage.run_dir import RunDir
from paceline.train import DataParallelTrainer
from paceline.view.integrity import verify_checkpoint, verify_journal, verify_run
from tests.ordinary import output_of


def steps() -> None:
    for step in range(3):
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    config = RunConfig(storage_path=str(tmp_path), verbose=0, engine="inline")
    run = DataParallelTrainer(steps, scaling_config=ScalingConfig(num_workers=1), run_config=config).fit()
    return RunDir(Path(run.path))


def states(run_dir: RunDir) -> list[str]:
    return [each.state for each in verify_run(str(run_dir.root))]


def test_a_sound_run(run_dir: RunDir) -> None:
    journal, *checkpoints = verify_run(str(run_dir.root))
    assert (journal.kind, journal.state, journal.size) == ("journal", "ok", run_dir.journal.stat().st_size)
    assert [(each.kind, each.state) for each in checkpoints] == [("checkpoint", "ok")] * 3
    assert all(each.size > 0 for each in checkpoints)


def test_a_file_that_is_gone_changed_or_too_much(run_dir: RunDir) -> None:
    (run_dir.checkpoint(0) / "dict_checkpoint.pkl").unlink()
    (run_dir.checkpoint(1) / "more").touch()
    manifest = run_dir.checkpoint(2) / "MANIFEST.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"size"', b'"sizf"'))
    problems = [each.problem for each in verify_run(str(run_dir.root))][1:]
    assert states(run_dir) == ["ok", "damaged", "damaged", "damaged"]
    assert ["dict_checkpoint.pkl" in problems[0], "more" in problems[1], "MANIFEST" in problems[2]] == [True] * 3


def test_a_torn_tail_is_not_damage(run_dir: RunDir) -> None:
    with run_dir.journal.open("ab") as journal:
        journal.write(b'12345678 99 {"kind":"row"')
    assert verify_journal(str(run_dir.root)).state == "ok"


def test_what_a_live_run_deletes_meanwhile_is_gone(tmp_path: Path) -> None:
    assert verify_checkpoint(str(tmp_path / "nowhere"), is_live=True).state == "gone"
    assert verify_checkpoint(str(tmp_path / "nowhere")).state == "damaged"


def test_a_directory_without_a_manifest_cannot_be_verified(tmp_path: Path) -> None:
    Checkpoint.from_dict({"x": 1}).to_directory(tmp_path / "own")
    found = verify_checkpoint(str(tmp_path / "own"))
    assert (found.state, "manifest" in found.problem) == ("unreadable", True)


def test_files_of_somebody_else_are_unreadable(run_dir: RunDir) -> None:
    run_dir.journal.chmod(0)
    code = "import sys; from paceline.view.integrity import verify_journal; print(verify_journal(sys.argv[1]).state)"
    assert output_of(code, str(run_dir.root)) == "unreadable\n"


def test_a_place_without_a_run(tmp_path: Path) -> None:
    found = verify_journal(str(tmp_path))
    assert (found.state, found.path) == ("damaged", str(tmp_path / "journal.jsonl"))
