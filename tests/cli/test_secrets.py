"""A masked secret is ``***`` under its own name, whichever command shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli, fit

PASSWORD = "hunter2-and-more"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("secrets")
    for name, lr in (("one", 0.1), ("two", 0.2)):
        fit(root, name, {"steps": 1, "lr": lr, "api_key": PASSWORD})
    return root


@pytest.mark.parametrize("form", ["table", "csv"])
@pytest.mark.parametrize("command", [["show", "one"], ["diff", "one", "two"]])
def test_commands(cli: Cli, root: Path, command: list[str], form: str) -> None:
    name, *paths = command
    said = cli(name, *(root / path for path in paths), "--format", form)
    assert said.code == 0, said
    assert "api_key/secret" not in said.out
    assert PASSWORD not in said.out
    assert "***" in said.out


def test_a_report(cli: Cli, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert cli("export", root / "one", "--to", "html", "-o", file).code == 0
    text = file.read_text(encoding="utf-8")
    assert "api_key/secret" not in text
    assert "***" in text
    assert PASSWORD not in text
