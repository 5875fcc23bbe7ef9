"""``paceline completion``: the scripts are accepted by their shells and know commands and options."""

from __future__ import annotations

import shutil
import subprocess
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


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "complete.sh").write_text(script("bash", capsys))
    (tmp_path / "my-run").mkdir()

    def completed(*words: str) -> set[str]:
        program = f"""
            source complete.sh
            function=$(complete -p paceline | sed 's/.*-F \\([^ ]*\\).*/\\1/')
            COMP_WORDS=({" ".join(f'"{word}"' for word in words)}); COMP_CWORD={len(words) - 1}
            $function paceline "{words[-1]}" "{words[-2]}"
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(
            ["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
        )
        return {line.strip() for line in done.stdout.splitlines()}

    assert "doctor" in completed("paceline", "doc")
    assert "--json" in completed("paceline", "doctor", "--")
    assert "json" in completed("paceline", "doctor", "--format", "")
    assert "my-run" in {word.rstrip("/") for word in completed("paceline", "serve", "my")}


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_accept_their_scripts(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(shell, capsys))
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=60)
