"""The command itself: how it reads its arguments, what its exit codes mean, and how errors are told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.air.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    ConfigError,
    JournalCorruptError,
    RestoreError,
    RunNotFoundError,
)
from paceline.cli import main as module
from paceline.cli.errors import CommandError, code_of
from paceline.cli.main import COMMANDS, main, parser


def run_command(*arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **settings)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: paceline {name} ")
    assert len(said.splitlines()) > 4


def test_help_lists_all_commands_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys\nfrom paceline.cli.main import COMMANDS, main\n"
        "try:\n main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in (*(f'paceline.cli.{each}' for each in COMMANDS), 'numpy', 'rich', 'shtab', 'msgspec')"
        " if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.splitlines()[-1] == "[]"
    assert all(f"    {name} " in said for name in COMMANDS)


def test_wrong_usage_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["doctor", "--no-such-option"], ["doctor", "--format", "xml"], ["completion"], []):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        assert (ended.value.code, said.out, len(said.err.splitlines())) == (2, "", 1), said


def test_wrong_usage_names_the_help_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["doctor", "--no-such-option"], ["doctor", "--format", "xml"], ["ls", "a", "b"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert capsys.readouterr().err.endswith(f" See paceline {arguments[0]} --help.\n")


def test_a_misspelled_command_names_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctr"]) == 2
    assert "did you mean doctor?" in capsys.readouterr().err
    assert main(["\x1b[2Jx"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_codes() -> None:
    assert code_of(CommandError("x", 3)) == 3
    assert code_of(CommandError("x")) == 1
    assert code_of(CheckpointCorruptError("x")) == 3
    assert code_of(ConfigError("x")) == 2
    assert code_of(CheckpointNotFoundError("x")) == 2
    assert code_of(RestoreError("x")) == 1
    assert code_of(RunNotFoundError("x")) == 2
    assert code_of(JournalCorruptError("x")) == 3
    assert code_of(OSError("x")) == 1


def test_an_interrupted_command_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_given: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.cli.doctor.run", interrupt)
    assert main(["doctor"]) == 130


def test_messages_have_one_line_and_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_given: object) -> int:
        raise CommandError("first\nsecond \x1b[31mred\udcff", 3)

    monkeypatch.setattr("paceline.cli.doctor.run", fail)
    assert main(["doctor"]) == 3
    assert capsys.readouterr().err == "paceline: first second red?\n"


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "paceline.cli.main", "doctor", "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_options_have_help() -> None:
    commands = next(action for action in parser()._actions if action.dest == "command")
    assert isinstance(commands.choices, dict)
    for name, command in commands.choices.items():
        without = [action.dest for action in command._actions if not action.help]
        assert not without, (name, without)


def test_the_table_of_commands_is_complete() -> None:
    folder = Path(str(module.__file__)).parent
    with_options = {path.stem for path in folder.glob("*.py") if "\ndef add_options(" in path.read_text()}
    assert with_options == set(COMMANDS)
