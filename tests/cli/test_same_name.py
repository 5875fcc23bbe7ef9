"""Several searches in one directory: each has a name of its own, which every command takes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from paceline.storage.run_dir import SEARCH_JOURNALS
from paceline.view.catalog import find
from tests.cli.conftest import Cli, search


@dataclass(frozen=True)
class Two:
    """Two searches in one directory below `root`."""

    root: Path
    older: str
    newer: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Two:
    root = tmp_path_factory.mktemp("two")
    search(root, "many")
    (older,) = (root / "many").glob(SEARCH_JOURNALS)
    search(root, "many")
    (newer,) = set((root / "many").glob(SEARCH_JOURNALS)) - {older}
    return Two(root, *(each.stem.removeprefix("experiment-") for each in (older, newer)))


@pytest.fixture
def two(made: Two, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Two:
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(made.root))
    monkeypatch.chdir(tmp_path)
    return made


def test_each_search_is_listed_and_shown_by_its_own_name(two: Two, cli: Cli) -> None:
    listed = json.loads(cli("ls", "--json").out)
    assert [row["name"] for row in listed] == [f"many/{two.newer}", f"many/{two.older}"]
    for row, id in zip(listed, (two.newer, two.older), strict=True):
        said = cli("show", row["name"], "--json")
        assert (said.code, said.err) == (0, "")
        shown = json.loads(said.out)
        assert shown["id"] == id
        assert all(Path(trial["path"]).name.startswith(f"objective_{id}_") for trial in shown["all_trials"])
        assert len(json.loads(cli("ls", row["name"], "--json").out)) == 4
    assert "contains 2 runs; showing the newest: " in cli("show", "many").err
    assert cli("show", "many").err.rstrip().endswith(f"many/{two.newer}")


def test_the_best_is_found_in_one_of_them_or_in_both(two: Two, cli: Cli) -> None:
    for name, ids in ((f"many/{two.older}", {two.older}), ("many", {two.older, two.newer})):
        said = cli("best", name, "-n", 10, "--json")
        assert said.code == 0, said.err
        assert {Path(row["path"]).name.split("_")[1] for row in json.loads(said.out)} == ids


def test_trials_of_both_are_found(two: Two, cli: Cli) -> None:
    first, second = f"many/{two.older}_00001", f"many/{two.newer}/{two.newer}_00001"
    assert cli("diff", first, second).code == 0
    for name in (first, second):
        assert cli("logs", name).code == 0
    assert "has no trial nope" in cli("show", "many/nope").err
    assert cli("export", f"many/{two.older}", "--to", "csv", "-o", "-").code == 0


def test_a_path_with_an_id_is_taken_as_well_as_a_name(two: Two, cli: Cli) -> None:
    (older,) = [each for each in find(two.root).searches if each.id.startswith(two.older)]
    said = cli("show", f"{two.root}/many/{two.older}", "--json")
    assert json.loads(said.out)["started"] == older.started
