"""``paceline completion``: the scripts are accepted by their shells and know commands, options and runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.cli.main import COMMANDS, main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_scripts_know_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert all(name in text for name in COMMANDS)
    assert "predict-kwargs" in text


Completed = Callable[..., set[str]]


@pytest.fixture
def completed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Completed:
    """What bash offers for the last of some words, in a directory with a run and with two in the results directory."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    (tmp_path / "complete.sh").write_text(script("bash", capsys))
    results = tmp_path / "my results"
    for folder in ("here/my-run", "here/.hidden", "my results/digits/Trainer_1", "my results/two words"):
        (tmp_path / folder).mkdir(parents=True)
    (results / "notes.txt").touch()

    def complete(*words: str) -> set[str]:
        program = f"""
            source ../complete.sh
            function=$(complete -p paceline | sed 's/.*-F \\([^ ]*\\).*/\\1/')
            COMP_WORDS=({" ".join(f'"{word}"' for word in words)}); COMP_CWORD={len(words) - 1}
            $function paceline "{words[-1]}" "{words[-2]}"
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(
            ["bash", "-c", program],
            cwd=tmp_path / "here",
            env={**os.environ, "PACELINE_RESULTS_DIR": str(results)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert "complete.sh" not in done.stderr, done.stderr
        return {line.strip() for line in done.stdout.splitlines()} - {""}

    return complete


def test_bash_completes_commands_and_options(completed: Completed) -> None:
    assert "doctor" in completed("paceline", "doc")
    assert "--json" in completed("paceline", "doctor", "--")
    assert "json" in completed("paceline", "doctor", "--format", "")


@pytest.mark.parametrize(
    "command",
    ["ls", "show", "best", "diff", "export", "logs", "stacks", "stop", "verify", "gc", "dash", "serve"],
)
def test_bash_completes_runs_by_name_and_by_path(command: str, completed: Completed) -> None:
    assert completed("paceline", command, "") == {"my-run", "digits", "two words"}
    assert completed("paceline", command, "dig") == {"digits"}
    assert completed("paceline", command, "digits/T") == {"digits/Trainer_1"}
    assert completed("paceline", command, "my") == {"my-run"}


def test_bash_completes_the_second_run_and_plain_files(completed: Completed) -> None:
    assert completed("paceline", "diff", "my-run", "dig") == {"digits"}
    assert completed("paceline", "port", "") == {"my-run", ".hidden"}
    assert completed("paceline", "export", "digits", "-o", "") == {"my-run", ".hidden"}
    assert completed("paceline", "show", ".h") == {".hidden"}
    assert completed("paceline", "show", "/no-such") == set()


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_accept_their_scripts(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(shell, capsys))
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=60)
