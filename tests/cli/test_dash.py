"""``paceline dash`` as a program: what it prints, how it ends, what it refuses."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.cli.main import main
from tests.view.journals import attempt, header, row, write
from tests.view.page.paging import Page
from tests.web.client import PATIENCE

TOKEN = "a-token-for-the-tests-of-dash"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write(tmp_path / "results" / "exp" / "run", [header(), attempt(), row(1, {"loss": 1.0})])
    return tmp_path / "results"


@contextlib.contextmanager
def command(*options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], Page, str]]:
    """The command in a process of its own; and what it printed until it was ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli.main", "dash", *options, "--no-open"],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        text = "".join(lines)
        link = re.search(r"(http://[^/\s]+)(?:/\?token=(\S+))?$", text, re.MULTILINE)
        assert link is not None, (text, process.communicate(timeout=PATIENCE))
        yield process, Page(SimpleNamespace(url=link[1], token=link[2])), text  # type: ignore[arg-type]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGTERM, 0, marks=pytest.mark.slow), (signal.SIGINT, 130)]
)
def test_a_link_with_the_token_and_its_end(results: Path, number: int, code: int) -> None:
    with command(str(results), "--port", "0") as (process, page, text):
        assert text.count("token=") == 1
        assert str(results) in text
        assert page.log_in().status == 303
        assert page.as_browser("GET", "/").status == 200
        cursor = page.get("list")["cursor"]
        with page.stream(list=cursor) as events:  # a tab that is open does not keep it from ending
            events.next("ping")
            process.send_signal(number)
            assert process.wait(PATIENCE) == code
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_token_file(results: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    with command(str(results), "--port", "0", "--token-file", str(file)) as (_, page, _):
        token = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert page.ask("GET", "/api/list", token=token).status == 200


@pytest.mark.slow
def test_the_results_directory_is_the_default(results: Path) -> None:
    with command("--port", "0", PACELINE_RESULTS_DIR=str(results), PACELINE_TOKEN=TOKEN) as (_, page, _):
        assert list(page.entries()) == ["exp/run"]


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["dash", "--no-open", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_bad_input(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in refused(capsys, str(tmp_path / "gone"))
    (tmp_path / "file").touch()
    assert "is a file" in refused(capsys, str(tmp_path / "file"))
    assert "--no-token" in refused(capsys, str(results), "--host", "0.0.0.0", "--no-token")
    assert "--port" in refused(capsys, str(results), "--port", "70000")
    assert "--certfile" in refused(capsys, str(results), "--keyfile", "key.pem")
    with pytest.raises(SystemExit) as ended:
        main(["dash", "--token-file", "a", "--no-token"])
    assert ended.value.code == 2


def test_a_port_that_is_taken(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with command(str(results), "--port", "0") as (_, page, _):
        port = page.address[1]
        assert str(port) in refused(capsys, str(results), "--port", str(port))
