"""``paceline port`` as a program."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.main import main

SCRIPT = "import ray\n\nray.init()\nprint(ray.get(1))\n"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    return Path("script.py")


def test_a_diff_is_printed_and_nothing_is_written(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", "script.py"]) == 0
    out = capsys.readouterr().out
    assert "--- script.py\n+++ script.py\n" in out
    assert "-ray.init()\n+paceline.init()\n" in out
    assert "script.py:4: ray.get" in out
    assert script.read_text() == SCRIPT


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
def test_the_diff_can_be_applied(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(SCRIPT.rstrip())
    main(["port", "script.py"])
    subprocess.run(["patch", "-s"], input=capsys.readouterr().out, text=True, check=True)
    by_patch = script.read_text()
    script.write_text(SCRIPT.rstrip())
    main(["port", "--write", "script.py"])
    assert script.read_text() == by_patch


def test_write_changes_the_file_once(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", "--write", "."]) == 0
    out = capsys.readouterr().out
    assert "ported script.py" in out
    assert "script.py:6: ray.get" in out  # where the line is now
    changed = script.read_text()
    assert changed.splitlines()[:4] == ["import paceline", "import ray", "", "paceline.init()"]
    assert main(["port", "--write", "script.py"]) == 0
    assert script.read_text() == changed


def test_check_fails_until_nothing_is_left_to_do(script: Path) -> None:
    assert main(["port", "--check", "script.py"]) == 1
    main(["port", "--write", "script.py"])
    assert main(["port", "--check", "script.py"]) == 1
    script.write_text("import paceline\n")
    assert main(["port", "--check", "script.py"]) == 0


def test_one_bad_file_does_not_stop_the_others(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.py").write_text("import ray\ndef f(:\n")
    assert main(["port", "--write", "."]) == 1
    assert "bad.py: line 2" in capsys.readouterr().err
    assert "paceline" in script.read_text()
    assert Path("bad.py").read_text() == "import ray\ndef f(:\n"


def test_a_path_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["port", str(tmp_path / "no-such.py")]) == 2
    assert "no-such.py" in capsys.readouterr().err


def test_without_libcst_the_extra_is_named(script: Path) -> None:
    code = (
        "import sys, importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'libcst' else find(name, *rest)\n"
        "from paceline.cli.main import main\nsys.exit(main(['port', 'script.py']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "pip install 'paceline[port]'" in done.stderr


def test_a_ported_program_runs(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(
        "import ray\nfrom ray import tune\nray.init()\nprint(ray.is_initialized(), tune.Tuner.__module__)\n"
    )
    main(["port", "--write", "script.py"])
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "True paceline.tune.tuner\n", done.stderr


def test_a_folder_without_programs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("import ray")
    assert main(["port", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"paceline: There are no Python files or notebooks in {tmp_path}.\n"
