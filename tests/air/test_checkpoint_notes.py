"""What a checkpoint carries beside its files: metadata, facts of its report, the preprocessor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

from paceline.air.checkpoint import Checkpoint, preprocessor_loaders
from paceline.air.errors import (
    CheckpointError,
    SerializationError,
)
from paceline.air.packing import DirectorySink
from tests.air.checkpoint_forms import CONVERSIONS, DATA, memory_file
from tests.air.damage import committed

REPORT = {"timestamp": 1_700_000_000, "number": 4, "iteration": 5}


@pytest.mark.parametrize("form", CONVERSIONS)
def test_notes_travel_with_the_checkpoint(form: str, directory: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_directory(directory)
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"report": 1, "class": "x"})
    checkpoint.update_metadata({"more": [1, {"é": None}]})
    expected = {"report": 1, "class": "x", "more": [1, {"é": None}]}
    assert checkpoint.get_metadata() == expected
    if form != "dict":  # a dict holds content alone
        assert CONVERSIONS[form](checkpoint, tmp_path).get_metadata() == expected
    for wrong in ([1], {"a": object()}):
        with pytest.raises(CheckpointError, match="Metadata"):
            checkpoint.set_metadata(wrong)  # type: ignore[arg-type]


def test_notes_of_other_tools_are_read(tmp_path: Path) -> None:
    (tmp_path / ".metadata.json").write_text('{"step": 3}')
    assert Checkpoint.from_directory(tmp_path).get_metadata() == {"step": 3}


def test_a_committed_checkpoint_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text("damaged")
    with pytest.raises(CheckpointError, match="to_directory"):
        Checkpoint(tmp_path).set_metadata({})


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_a_committed_checkpoint_is_not_overwritten(scheme: str, tmp_path: Path) -> None:
    path = committed(Checkpoint.from_dict({"epoch": 1}), tmp_path / "checkpoint_000000")
    place = f"{scheme}{path}"
    if scheme == "memory://":
        fsspec.filesystem("memory").put(str(path), str(path), recursive=True)
    write = Checkpoint.to_uri if scheme else Checkpoint.to_directory
    with pytest.raises(CheckpointError, match=r"checkpoint_000000.*overwritten"):
        write(Checkpoint.from_dict({"epoch": 2}), place)
    assert Checkpoint(place).to_dict()["epoch"] == 1
    assert write(Checkpoint(place), place) == place  # it is there already
    if scheme == "memory://":
        fsspec.filesystem("memory").pipe_file(f"{path}/MANIFEST.json", b"damaged")
    else:
        (path / "MANIFEST.json").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"checkpoint_000000.*overwritten"):
        write(Checkpoint.from_dict({"epoch": 2}), place)
    copy = Checkpoint.from_dict({"epoch": 1}).to_directory(tmp_path / "copy")
    (tmp_path / "copy" / "MANIFEST.json").write_text('{"written by": "other software"}')
    assert Checkpoint(Checkpoint.from_dict({"epoch": 2}).to_directory(copy)).to_dict() == {"epoch": 2}


def test_report_facts_are_in_the_dict(tmp_path: Path) -> None:
    Checkpoint.from_dict(DATA).write_files(DirectorySink(tmp_path / "c"), report=REPORT)
    stored = Checkpoint.from_directory(tmp_path / "c")
    expected = {**DATA, "_timestamp": 1_700_000_000, "_preprocessor": None, "_current_checkpoint_id": 4}
    assert stored.to_dict() == expected
    assert list(stored.to_dict()) == list(expected)
    assert (stored.number, stored.iteration) == (4, 5)
    in_memory = memory_file(Checkpoint.from_dict(DATA), REPORT)
    assert in_memory.to_dict() == expected
    assert Checkpoint.from_dict(DATA).number is None


def test_facts_of_the_newest_report_win(tmp_path: Path) -> None:
    Checkpoint.from_dict(DATA).write_files(DirectorySink(tmp_path / "a"), report=REPORT)
    again = Checkpoint.from_dict(Checkpoint.from_directory(tmp_path / "a").to_dict())
    again.write_files(DirectorySink(tmp_path / "b"), report={**REPORT, "number": 7})
    assert Checkpoint.from_directory(tmp_path / "b").to_dict()["_current_checkpoint_id"] == 7


class Scaler:
    def __init__(self, mean: float) -> None:
        self.mean = mean

    def to_state(self) -> dict[str, Any]:
        return {"mean": self.mean}


@pytest.fixture
def stored_scalers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(preprocessor_loaders, f"{__name__}.Scaler", lambda state: Scaler(**state))


@pytest.mark.usefixtures("stored_scalers", "memory_uri")
@pytest.mark.parametrize("form", CONVERSIONS)
def test_a_preprocessor_travels_as_data(form: str, directory: Path, tmp_path: Path) -> None:
    for checkpoint in (Checkpoint.from_dict(DATA), Checkpoint(directory)):
        assert checkpoint.get_preprocessor() is None
        checkpoint.set_preprocessor(Scaler(2.5))
        (tmp_path / checkpoint.get_internal_representation()[0]).mkdir()
        there = CONVERSIONS[form](checkpoint, tmp_path / checkpoint.get_internal_representation()[0])
        assert there.get_preprocessor().mean == 2.5


@pytest.mark.usefixtures("stored_scalers")
@pytest.mark.parametrize("number", [None, 3])
def test_a_preprocessor_in_a_dict_is_that_of_the_checkpoint(number: int | None, tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_dict({"x": 1, "_preprocessor": Scaler(2.5)})
    report = None if number is None else {"number": number}
    checkpoint.write_files(DirectorySink(tmp_path), report=report)
    there = Checkpoint.from_directory(tmp_path)
    assert there.get_preprocessor().mean == 2.5
    assert there.to_dict()["_preprocessor"].mean == 2.5
    again = Checkpoint.from_dict(there.to_dict())
    assert Checkpoint.from_bytes(again.to_bytes()).get_preprocessor().mean == 2.5


def test_what_cannot_be_stored_as_a_preprocessor_stays_an_item_of_the_dict(tmp_path: Path) -> None:
    Checkpoint.from_dict({"_preprocessor": "scale"}).write_files(DirectorySink(tmp_path), report={"number": 0})
    assert Checkpoint.from_directory(tmp_path).get_preprocessor() is None
    assert Checkpoint.from_directory(tmp_path).to_dict()["_preprocessor"] == "scale"


def test_a_preprocessor_that_cannot_be_stored_is_refused(directory: Path) -> None:
    checkpoint = Checkpoint.from_dict(DATA)
    preprocessor = object()
    checkpoint.set_preprocessor(preprocessor)
    assert checkpoint.to_dict()["_preprocessor"] is preprocessor
    with pytest.raises(SerializationError, match="to_state"):
        checkpoint.to_bytes()
    with pytest.raises(SerializationError, match="to_state"):
        Checkpoint(directory).set_preprocessor(preprocessor)


def test_a_stored_preprocessor_of_an_unknown_class(tmp_path: Path) -> None:
    (tmp_path / ".preprocessor.json").write_text('{"class": "gone.Scaler", "state": {}}')
    with pytest.raises(CheckpointError, match=r"gone\.Scaler"):
        Checkpoint(tmp_path).get_preprocessor()
