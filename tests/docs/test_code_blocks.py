"""Every Python block of the README and the guides runs and prints what it says; links and file names hold.

A page is one program: its blocks run in order, in one namespace, as a script whose line
numbers are those of the page, so that a traceback points into the page. A comment
``# -> text`` promises a line of output; the promised lines must appear in that order.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALL_PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [page for page in ALL_PAGES if "```python" in page.read_text(encoding="utf-8")]
LINK = re.compile(r"\]\(([^)#:]+)\)")
SOURCE_FILE = re.compile(r"`([a-z_/]+\.py)`")
PROMISE = re.compile(r"#\s*->\s*(.*\S)")
SECONDS_PER_PAGE = 90


@dataclass(frozen=True)
class Page:
    program: str
    promises: list[str]


def read_page(text: str) -> Page:
    """The Python lines of a page at their own line numbers, and the output they promise."""
    program: list[str] = []
    language: str | None = None
    for line in text.splitlines():
        is_fence = line.startswith("```")
        if is_fence:
            language = None if language is not None else line[3:].strip()
        program.append(line if language == "python" and not is_fence else "")
    code = [line for line in program if line]
    return Page("\n".join(program) + "\n", [found[1] for line in code if (found := PROMISE.search(line))])


def first_missing(promises: list[str], output: str) -> str | None:
    """The first promised line that does not come after the ones before it."""
    lines = iter(line.strip() for line in output.splitlines())
    return next((promise for promise in promises if promise not in lines), None)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_runs(path: Path, tmp_path: Path) -> None:
    page = read_page(path.read_text(encoding="utf-8"))
    home = tmp_path / "home"
    home.mkdir()
    script = tmp_path / f"page_{path.stem.lower().replace('-', '_')}.py"  # not torch.py: it would be found as torch
    script.write_text(page.program, encoding="utf-8")
    environment = os.environ | {
        "HOME": str(home),
        "PACELINE_RESULTS_DIR": str(tmp_path / "results"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, script],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_PER_PAGE,
        check=False,
    )
    said = f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    assert done.returncode == 0, f"{path.name} failed\n{said}"
    missing = first_missing(page.promises, done.stdout)
    assert missing is None, f"{path.name} promises the line {missing!r}, which was not printed there\n{said}"


@pytest.mark.parametrize("path", ALL_PAGES, ids=lambda path: path.stem)
def test_links_and_file_names_resolve(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = [path.parent / target for target in LINK.findall(text)]
    assert [str(target) for target in links if not target.exists()] == []
    places = (ROOT, ROOT / "paceline")
    named = SOURCE_FILE.findall(text)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_a_page_keeps_its_line_numbers_and_promises() -> None:
    page = read_page("# Title\n```python\nx = 1\nprint(x)  # -> 1\n```\n```text\nnot code\n```\n")
    assert page.program.splitlines() == ["", "", "x = 1", "print(x)  # -> 1", "", "", "", ""]
    assert page.promises == ["1"]


def test_promises_are_checked_in_order() -> None:
    assert first_missing(["a", "b"], "noise\na\nb\n") is None
    assert first_missing(["b", "a"], "a\nb\n") == "a"
