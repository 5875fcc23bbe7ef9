"""The committed build of the run page is that of its sources, and a build that is not is noticed."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = PROJECT / "tools" / "page.py"


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("page_tool", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(page, tmp_path):
    """(sources, bundle) that may be changed."""
    sources, bundle = tmp_path / "page", tmp_path / "bundle"
    shutil.copytree(page.SOURCES, sources, ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(page.BUNDLE, bundle)
    return sources, bundle


def test_the_committed_build_is_current():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_changed_source_makes_the_build_stale(page, copy):
    sources, bundle = copy
    assert page.check(sources, bundle) == ""
    (sources / "src" / "format.ts").write_text("export {};\n")
    assert "make page" in page.check(sources, bundle)


def test_a_new_source_and_another_version_of_a_library_do_too(page, copy):
    sources, bundle = copy
    added = sources / "src" / "added.ts"
    added.write_text("export {};\n")
    assert page.check(sources, bundle)
    added.unlink()
    assert page.check(sources, bundle) == ""
    lock = sources / "package-lock.json"
    lock.write_text(lock.read_text().replace('"uplot"', '"other"'))
    assert page.check(sources, bundle)


def test_a_build_that_was_changed_by_hand_is_noticed(page, copy):
    sources, bundle = copy
    script = next((bundle / "assets").glob("*.js"))
    script.write_text(script.read_text() + "\n")
    assert "not those that were built" in page.check(sources, bundle)
    (bundle / "SOURCES.json").unlink()
    assert "missing" in page.check(sources, bundle)


def test_line_ends_of_a_checkout_do_not_count(page, copy):
    sources, bundle = copy
    style = sources / "src" / "styles.css"
    style.write_bytes(style.read_bytes().replace(b"\n", b"\r\n"))
    assert page.check(sources, bundle) == ""


def test_the_build_carries_the_licences_of_its_libraries(page):
    text = (page.BUNDLE / page.LICENSES).read_text()
    for name in page.BUNDLED:
        assert f"\n{name} " in text
    assert text.count("Permission is hereby granted") == len(page.BUNDLED)


def test_the_lock_file_names_no_download_hosts(page):
    packages = json.loads((page.SOURCES / "package-lock.json").read_text())["packages"]
    assert packages
    assert not [name for name, entry in packages.items() if "resolved" in entry]
