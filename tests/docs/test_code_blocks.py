"""Every Python and shell block of the README and the guides runs and prints what it says; links and file names hold.

A page is one program: its Python blocks run in order, in one namespace, as a script whose line
numbers are those of the page, so that a traceback points into the page. Then its shell blocks (``sh``)
run in the same directory. A comment ``# -> text`` promises a line of output; the promised lines must appear
in that order.

Frameworks take seconds to import, in the program and again for its workers. So each page runs in the test
process, which has already imported them; the slow tests run each page in an interpreter of its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALL_PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [page for page in ALL_PAGES if "```python" in page.read_text(encoding="utf-8")]
LINK = re.compile(r"\]\(([^):]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
SOURCE_FILE = re.compile(r"`([a-z_/]+\.py)`")
PROMISE = re.compile(r"#\s*->\s*(.*\S)")
SECONDS_PER_PAGE = 90
FIRST_PAGE = "getting-started"
PORT_IN_PAGES = "8000"
NEEDS_RLLIB = pytest.mark.skipif(find_spec("ray") is None or find_spec("gymnasium") is None, reason="needs RLlib")
NEEDS_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
MARKS = {
    "cluster": [pytest.mark.cluster, NEEDS_RAY],
    "reinforcement-learning": [pytest.mark.rl, pytest.mark.timeout(300), NEEDS_RLLIB],
}
"""Pages that need more than the other tests."""
ALONE = {"cluster"}
"""Pages that run only in an interpreter of their own: they start a Ray."""


@dataclass(frozen=True)
class Page:
    program: str
    promises: list[str]


def read_page(text: str, language: str = "python") -> Page:
    """The lines of a page in one language at their own line numbers, and the output they promise."""
    program: list[str] = []
    block: str | None = None
    for line in text.splitlines():
        is_fence = line.startswith("```")
        if is_fence:
            block = None if block is not None else line[3:].strip()
        program.append(line if block == language and not is_fence else "")
    code = [line for line in program if line]
    return Page("\n".join(program) + "\n", [found[1] for line in code if (found := PROMISE.search(line))])


def first_missing(promises: list[str], output: str) -> str | None:
    """The first promised line that does not come after the ones before it."""
    lines = iter(line.strip() for line in output.splitlines())
    return next((promise for promise in promises if promise not in lines), None)


def name_of(path: Path) -> str:
    return path.stem


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.mark.parametrize(
    "path",
    [pytest.param(page, marks=MARKS.get(page.stem, [])) for page in PAGES if page.stem not in ALONE],
    ids=name_of,
)
def test_page_runs(path: Path, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page, script = write_script(path, home.parent)
    with as_program(home) as module:
        exec(compile(page.program, script, "exec"), vars(module))
    check_promises(path.name, page.promises, capfd.readouterr().out)
    run_shell_blocks(path, home)


@pytest.mark.parametrize(
    "path",
    [
        page if page.stem == FIRST_PAGE else pytest.param(page, marks=MARKS.get(page.stem, pytest.mark.slow))
        for page in PAGES
        if page.stem in ALONE or page.stem not in MARKS
    ],
    ids=name_of,
)
def test_page_runs_in_an_interpreter_of_its_own(path: Path, home: Path) -> None:
    page, script = write_script(path, home.parent)
    check_output(path.name, [sys.executable, str(script)], page.promises, home)
    run_shell_blocks(path, home)


def write_script(path: Path, folder: Path) -> tuple[Page, Path]:
    page = read_page(path.read_text(encoding="utf-8"))
    script = folder / f"page_{path.stem.lower().replace('-', '_')}.py"  # not torch.py: it would be found as torch
    script.write_text(page.program, encoding="utf-8")
    return page, script


def run_shell_blocks(path: Path, home: Path) -> None:
    shell = read_page(path.read_text(encoding="utf-8"), "sh")
    if shell.program.strip():
        write_shell_files(home)
        program = "set -e\n" + shell.program.replace(PORT_IN_PAGES, str(free_port()))
        check_output(path.name, ["bash", "-c", program], shell.promises, home)


@contextlib.contextmanager
def as_program(home: Path) -> Iterator[ModuleType]:
    """An empty `__main__`, a user's directory, variables and warnings; what a page leaves of them is cleared away."""
    variables, directory, own_main = dict(os.environ), Path.cwd(), sys.modules["__main__"]
    sys.modules["__main__"] = module = ModuleType("__main__")
    os.chdir(home)
    os.environ |= {"HOME": str(home), "PACELINE_RESULTS_DIR": str(home / "paceline_results")}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield module
            finally:
                # As at the end of an interpreter: datasets that were not read to the end have processes.
                vars(module).clear()
                gc.collect()
    finally:
        sys.modules["__main__"] = own_main
        os.chdir(directory)
        os.environ.clear()
        os.environ |= variables


def write_shell_files(home: Path) -> None:
    """What a user's shell finds: the command of this project, and a curl that ends its output with a new line."""
    command = home / "bin" / "paceline"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m paceline.cli.main "$@"\n', encoding="utf-8")
    command.chmod(0o700)
    (home / ".curlrc").write_text('write-out = "\\n"\n', encoding="utf-8")


def check_output(name: str, command: list[str], promises: list[str], home: Path) -> None:
    """Run a program as a user with this home, and look for what it promised to print. Nothing of it is left behind."""
    environment = os.environ | {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(home / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PACELINE_RESULTS_DIR": str(home / "paceline_results"),
        "PYTHONPATH": str(ROOT),
    }
    with subprocess.Popen(
        command,
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=SECONDS_PER_PAGE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    said = f"--- stdout\n{output}\n--- stderr\n{errors}"
    assert process.returncode == 0, f"{name} failed\n{said}"
    check_promises(name, promises, output, said)


def check_promises(name: str, promises: list[str], output: str, said: str = "") -> None:
    missing = first_missing(promises, output)
    assert missing is None, f"{name} promises the line {missing!r}, which was not printed there\n{said or output}"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.parametrize("path", ALL_PAGES, ids=lambda path: path.stem)
def test_links_and_file_names_resolve(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [link for link in LINK.findall(text) if not resolves(path, link)] == []
    places = (ROOT, ROOT / "paceline")
    named = SOURCE_FILE.findall(text)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def resolves(page: Path, link: str) -> bool:
    """Whether the file is there, and a heading of that name in it."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not anchor or anchor in anchors(target.read_text(encoding="utf-8")))


def anchors(text: str) -> set[str]:
    """The headings as they are written in links."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(text)}


def test_a_page_keeps_its_line_numbers_and_promises() -> None:
    page = read_page("# Title\n```python\nx = 1\nprint(x)  # -> 1\n```\n```text\nnot code\n```\n")
    assert page.program.splitlines() == ["", "", "x = 1", "print(x)  # -> 1", "", "", "", ""]
    assert page.promises == ["1"]


def test_shell_blocks_are_read_apart() -> None:
    page = read_page("```python\nx = 1\n```\n```sh\necho a\n# -> a\n```\n", "sh")
    assert page.program.split() == ["echo", "a", "#", "->", "a"]
    assert page.promises == ["a"]


def test_links_name_headings_that_are_there(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title, and more\n## `code` here\n", encoding="utf-8")
    assert resolves(page, "#a-title-and-more")
    assert resolves(page, "page.md#code-here")
    assert not resolves(page, "page.md#elsewhere")
    assert not resolves(page, "other.md")


def test_promises_are_checked_in_order() -> None:
    assert first_missing(["a", "b"], "noise\na\nb\n") is None
    assert first_missing(["b", "a"], "a\nb\n") == "a"
