"""A masked secret is ``***`` under its own name, whichever command shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, fit, search

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


@pytest.fixture(scope="module")
def store(root: Path) -> Iterator[str]:
    """The address of a copy of the runs. Without the password there is nothing."""
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    address = f"memory://someone:{PASSWORD}@bucket"
    search(root, "search")
    for file in root.rglob("*"):
        if file.is_file():
            files.pipe_file(f"{address}/{file.relative_to(root)}", file.read_bytes())
    yield address
    files.rm(address, recursive=True)


@pytest.mark.parametrize("form", ["table", "csv", "json"])
@pytest.mark.parametrize("place", ["", "/one", "/search"])
@pytest.mark.parametrize("command", ["ls", "show", "best", "verify", "gc"])
def test_an_address_with_a_password_opens_and_is_not_printed(
    cli: Cli, store: str, command: str, place: str, form: str
) -> None:
    options = {"gc": ["--dry-run"], "verify": ["-v"], "best": ["--metric", "loss", "--mode", "min"]}
    said = cli(command, f"{store}{place}", "--format", form, *options.get(command, []))
    assert said.code == 0, said
    assert said.out
    assert PASSWORD not in said.out + said.err


def test_trials_and_comparisons_at_an_address_with_a_password(cli: Cli, store: str, tmp_path: Path) -> None:
    rows = json.loads(cli("ls", f"{store}/search", "--json").out)
    assert {row["kind"] for row in rows} == {"trial"}
    trial = rows[0]["path"].rpartition("/")[2]
    for arguments in (
        ["show", f"{store}/search/{trial}", "--json"],
        ["diff", f"{store}/one", f"{store}/two"],
        ["export", f"{store}/one", "-o", tmp_path / "x.csv"],
        ["export", f"{store}/one", "-o", tmp_path / "x.html"],
    ):
        said = cli(*arguments)
        assert said.code == 0, said
        assert PASSWORD not in said.out + said.err
    assert PASSWORD not in (tmp_path / "x.html").read_text()
    said = cli("show", f"{store}/nope")
    assert (said.code, PASSWORD in said.err) == (2, False)
