"""No command runs what a checkpoint or a journal contains: a pickle that would leave a mark when it is loaded."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from paceline.storage.run_dir import RunDir
from tests.cli.conftest import Cli, Runs


class Canary:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.mark, "w")


@pytest.mark.parametrize(
    "command",
    [
        ("ls",),
        ("show", "--all"),
        ("best",),
        ("export", "--to", "csv", "-o", "out.csv"),
        ("export", "--to", "html", "-o", "out.html"),
        ("logs",),
        ("verify",),
        ("gc", "--keep", "1"),
    ],
    ids=" ".join,
)
def test_pickles_are_not_loaded(
    command: tuple[str, ...], runs: Runs, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4."""
    monkeypatch.chdir(tmp_path)
    run_dir = RunDir(Path(shutil.copytree(runs.finished, tmp_path / "run")))
    payload = pickle.dumps(Canary(str(tmp_path / "mark")))
    pickle.loads(payload).close()
    assert (tmp_path / "mark").exists(), "the canary sings"
    (tmp_path / "mark").unlink()
    for _, checkpoint in run_dir.checkpoints():
        for file in checkpoint.rglob("*"):
            if file.is_file() and file.name != "MANIFEST.json":
                file.write_bytes(payload)
    for name in ("params.json", "result.json", "progress.csv"):
        (run_dir.root / name).write_bytes(payload)
    name, *options = command
    cli(name, run_dir.root, *options)
    assert not (tmp_path / "mark").exists()
