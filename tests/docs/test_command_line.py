"""The guide to the command line knows every command, and every command in a guide can be typed as it is printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from paceline.cli.main import COMMANDS, parser
from tests.docs.test_code_blocks import ALL_PAGES, ROOT

FENCE = re.compile(r"^```(?:sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
END_OF_COMMAND = re.compile(r"[|>&;]|\d>|#|\|\|")
GUIDE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


def printed() -> Iterator[tuple[str, list[str]]]:
    """The page, and the words of each `paceline ...` in a block of shell or text."""
    for page in ALL_PAGES:
        for block in FENCE.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                if line.lstrip().startswith("paceline ") and line.split()[1] in COMMANDS:
                    words = shlex.split(line.strip(), comments=True)[1:]
                    end = next((n for n, word in enumerate(words) if END_OF_COMMAND.fullmatch(word)), len(words))
                    yield page.stem, words[:end]


def test_commands_in_guides_are_valid(capsys: pytest.CaptureFixture[str]) -> None:
    known, refused = {}, []
    for page, words in printed():
        command = known.setdefault(words[0], parser(words[0]))
        try:
            command.parse_args(words)
        except SystemExit:
            refused.append(f"{page}: paceline {' '.join(words)}: {capsys.readouterr().err}")
    assert refused == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_guide_has_every_command(name: str) -> None:
    row = re.search(rf"^\| (?:\[`{name}`\]\(#[a-z-]+\)|`{name}`) \| (.*) \|$", GUIDE, re.MULTILINE)
    assert row is not None


def test_examples_run_most_commands() -> None:
    run = {words[0] for page, words in printed() if page == "command-line"}
    assert set(COMMANDS) - run <= {"dash", "serve", "port"}
