"""The local copy of a run on remote storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.storage.run_dir import RunDir, default_storage_root
from paceline.storage.twin import read_origin, twin_of_trial, write_origin
from tests.storage.damage import Damage, delete, empty, garble, overwrite_with_text, replace_by_directory

URI = "memory://bucket/experiment/trial"


@pytest.mark.parametrize("damage", [garble, overwrite_with_text, empty, delete, replace_by_directory])
def test_a_damaged_origin_does_not_keep_a_run_from_its_directory(damage: Damage, results_dir: Path) -> None:
    run_dir = RunDir(default_storage_root() / "experiment" / "trial")
    run_dir.create()
    write_origin(run_dir.origin, URI)
    damage(run_dir.origin)
    assert twin_of_trial(URI).root == run_dir.root
    write_origin(run_dir.origin, URI)
    assert read_origin(run_dir.origin) == URI


def test_copies_of_a_run_in_two_places_have_directories_of_their_own(results_dir: Path) -> None:
    run_dir = RunDir(default_storage_root() / "experiment" / "trial")
    run_dir.create()
    write_origin(run_dir.origin, URI)
    assert twin_of_trial(URI).root == run_dir.root
    copy = twin_of_trial("memory://elsewhere/experiment/trial").root
    assert copy != run_dir.root
    assert copy.name == "trial"
