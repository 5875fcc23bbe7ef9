"""Checkpoint: every form gives every other, in every process, with the class that wrote it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle
import fsspec
import pytest

from paceline.air.checkpoint import Checkpoint
from paceline.air.checkpoint_sources import PACKED_FILES_KEY
from paceline.air.errors import (
    CheckpointError,
    ConfigError,
    SerializationError,
)
from tests.air.checkpoint_forms import CONVERSIONS, DATA, memory_file
from tests.descriptors import open_descriptors


class FancyCheckpoint(Checkpoint):
    """A class that framework packages make their own of."""


class FancierCheckpoint(FancyCheckpoint):
    pass


class OtherCheckpoint(Checkpoint):
    pass


Tree = dict[str, tuple[int, bytes | None]]
"""Mode and content by name; a directory has no content."""


def tree_of(path: str | Path, without: tuple[str, ...] = (".metadata.json",)) -> Tree:
    root = Path(path)
    return {
        str(item.relative_to(root)): (item.stat().st_mode & 0o777, item.read_bytes() if item.is_file() else None)
        for item in root.rglob("*")
        if item.name not in without
    }


def contents(tree: Tree) -> Tree:
    return {name: (0, content) for name, (_, content) in tree.items() if content is not None}


@pytest.mark.usefixtures("memory_uri")
@pytest.mark.parametrize("second", CONVERSIONS)
@pytest.mark.parametrize("first", CONVERSIONS)
def test_a_dict_survives_every_pair_of_forms(first: str, second: str, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    there = CONVERSIONS[first](Checkpoint.from_dict(DATA), tmp_path / "1")
    assert CONVERSIONS[second](there, tmp_path / "2").to_dict() == DATA


@pytest.mark.usefixtures("memory_uri")
@pytest.mark.parametrize("second", CONVERSIONS)
@pytest.mark.parametrize("first", CONVERSIONS)
def test_files_survive_every_pair_of_forms(first: str, second: str, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    there = CONVERSIONS[first](Checkpoint.from_directory(directory), tmp_path / "1")
    back = CONVERSIONS[second](there, tmp_path / "2").to_directory(tmp_path / "back")
    found, expected = tree_of(back), tree_of(directory)
    if "uri" in first + second:  # an object store knows names and bytes
        found, expected = contents(found), contents(expected)
    assert found == expected


def test_a_dict_with_files_beside_it_keeps_both(tmp_path: Path) -> None:
    path = Path(Checkpoint.from_dict(DATA).to_directory(tmp_path / "a"))
    (path / "extra.txt").write_text("more")
    data = Checkpoint.from_directory(path).to_dict()
    assert {key: data[key] for key in DATA} == DATA
    assert set(data) == {*DATA, PACKED_FILES_KEY}
    data["epoch"] = 4
    copy = Checkpoint.from_dict(data).to_directory(tmp_path / "b")
    assert Path(copy, "extra.txt").read_text() == "more"
    assert Checkpoint.from_directory(copy).to_dict()["epoch"] == 4


def test_internal_representation(tmp_path: Path) -> None:
    path = str(tmp_path)
    assert Checkpoint(path).get_internal_representation() == ("local_path", path)
    assert Checkpoint(local_path=tmp_path).get_internal_representation() == ("local_path", path)
    assert Checkpoint(f"file://{path}").get_internal_representation() == ("local_path", path)
    assert Checkpoint(data_dict=DATA).get_internal_representation() == ("data_dict", DATA)
    assert Checkpoint(uri="s3://b/c").get_internal_representation() == ("uri", "s3://b/c")
    assert Checkpoint("s3://b/c").get_internal_representation() == ("uri", "s3://b/c")
    assert memory_file(Checkpoint.from_dict(DATA)).get_internal_representation() == ("data_dict", DATA)


def test_path_and_uri(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert (checkpoint.path, checkpoint.uri, checkpoint.filesystem) == (str(tmp_path), f"file://{tmp_path}", None)
    assert (Checkpoint.from_dict({}).path, Checkpoint.from_dict({}).uri) == (None, None)
    assert Checkpoint(uri="memory://x").uri == "memory://x"


def test_a_relative_path_is_fixed_when_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert Checkpoint("here").path == str(tmp_path / "here")


def test_a_filesystem_may_be_given(memory_uri: str) -> None:
    Checkpoint.from_dict(DATA).to_uri(memory_uri)
    filesystem = fsspec.filesystem("memory")
    checkpoint = Checkpoint(memory_uri, filesystem)
    assert checkpoint.filesystem is filesystem
    assert checkpoint.to_dict() == DATA
    with pytest.raises(ConfigError, match="fsspec"):
        Checkpoint(memory_uri, object())


@pytest.mark.parametrize(
    "sources",
    [
        {},
        {"path": "a", "uri": "s3://b"},
        {"data_dict": [1]},
        {"path": ""},
        {"path": 3},
        {"path": b"x"},
        {"path": "a\0"},
    ],
)
def test_exactly_one_source(sources: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Checkpoint(**sources)


def test_lambdas_and_local_classes_can_be_pickled() -> None:
    class Local:
        x = 5

    data = Checkpoint.from_bytes(Checkpoint.from_dict({"f": lambda: 7, "c": Local()}).to_bytes()).to_dict()
    assert data["f"]() == 7
    assert data["c"].x == 5


# Classes


def test_the_class_that_wrote_it_comes_back(tmp_path: Path, memory_uri: str) -> None:
    original = FancierCheckpoint.from_dict(DATA)
    path = original.to_directory(tmp_path / "c")
    uri, data = original.to_uri(memory_uri), original.to_bytes()
    expected = {Checkpoint: FancierCheckpoint, FancyCheckpoint: FancierCheckpoint, OtherCheckpoint: OtherCheckpoint}
    for through, result in expected.items():
        assert type(through.from_directory(path)) is result
        assert type(through.from_bytes(data)) is result
        assert type(through.from_uri(uri)) is result
    assert type(memory_file(original)) is FancierCheckpoint


def test_retyping_keeps_content_and_notes() -> None:
    original = Checkpoint.from_dict(DATA)
    original.set_metadata({"by": "hand"})
    fancy = FancyCheckpoint.from_checkpoint(original)
    assert type(fancy) is FancyCheckpoint
    assert fancy.to_dict() == DATA
    assert fancy.get_metadata() == {"by": "hand"}


# Across processes


def test_a_directory_travels_as_a_reference(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    pickled = pickle.dumps(checkpoint)
    assert len(pickled) < 400
    assert str(directory).encode() in pickled
    assert pickle.loads(pickled) == checkpoint


def test_forms_travel_to_another_process(directory: Path, tmp_path: Path) -> None:
    checkpoints = [
        Checkpoint(directory),
        Checkpoint.from_dict(DATA),
        memory_file(Checkpoint.from_dict(DATA)),
        Checkpoint.from_bytes(Checkpoint.from_dict(DATA).to_bytes()),
    ]
    (tmp_path / "sent").write_bytes(cloudpickle.dumps(checkpoints))
    code = (
        "import pickle, sys\n"
        "a, *rest = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert a.path == sys.argv[2], a\n"
        "assert all(c.to_dict()['epoch'] == 3 for c in rest)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "sent"), str(directory)], check=True)


def test_a_memory_file_is_closed_with_its_checkpoint() -> None:
    before = open_descriptors()
    checkpoint = memory_file(Checkpoint.from_dict(DATA))
    same = FancyCheckpoint.from_checkpoint(checkpoint)
    del checkpoint
    assert same.to_dict() == DATA
    del same
    assert not open_descriptors() - before


def test_equality() -> None:
    here = Checkpoint(".")
    assert here == Checkpoint(os.getcwd())
    assert hash(here) == hash(Checkpoint(os.getcwd()))
    assert here != Checkpoint("/")
    assert Checkpoint.from_dict({}) != Checkpoint.from_dict({})
    assert here != "."


# Directories


def test_as_directory_gives_the_original_or_a_passing_copy(directory: Path) -> None:
    with Checkpoint(directory).as_directory() as path:
        assert path == str(directory)
    assert directory.exists()
    with Checkpoint.from_dict(DATA).as_directory() as path:
        assert Path(path, "dict_checkpoint.pkl").exists()
    assert not os.path.exists(path)


def test_to_directory_makes_a_private_temporary_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = (Path(Checkpoint.from_dict(DATA).to_directory()) for _ in range(2))
    assert first != second
    assert first.stat().st_mode & 0o777 == 0o700
    with pytest.raises(SerializationError):
        Checkpoint.from_dict({"bad": (n for n in "x")}).to_directory()
    assert sorted(tmp_path.iterdir()) == sorted([first, second])


def test_an_empty_directory_is_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    copy = Checkpoint.from_bytes(Checkpoint(tmp_path / "empty").to_bytes()).to_directory(tmp_path / "copy")
    assert tree_of(copy) == {}


def test_to_directory_onto_itself_changes_nothing(directory: Path) -> None:
    before = tree_of(directory, without=())
    assert Checkpoint(directory).to_directory(directory) == str(directory)
    assert tree_of(directory, without=()) == before


def test_a_copy_has_no_manifest(directory: Path, tmp_path: Path) -> None:
    (directory / "MANIFEST.json").write_text("{}")
    (directory / "sub" / "MANIFEST.json").write_text("the user's own")
    copy = Path(Checkpoint(directory).to_directory(tmp_path / "copy"))
    assert not (copy / "MANIFEST.json").exists()
    assert (copy / "sub" / "MANIFEST.json").exists()


def test_links_inside_are_files_and_others_are_refused(directory: Path, tmp_path: Path) -> None:
    (directory / "latest").symlink_to("model.bin")
    copy = Path(Checkpoint(directory).to_directory(tmp_path / "copy"))
    assert not (copy / "latest").is_symlink()
    assert (copy / "latest").read_bytes() == (directory / "model.bin").read_bytes()
    for target in ("/etc/passwd", "nowhere", "bad", "sub"):
        (directory / "bad").symlink_to(target)
        for use in (Checkpoint(directory).to_bytes, Checkpoint(directory).to_dict):
            with pytest.raises(CheckpointError, match="'bad'"):
                use()
        (directory / "bad").unlink()
    os.mkfifo(directory / "pipe")
    with pytest.raises(CheckpointError, match="'pipe'"):
        Checkpoint(directory).to_bytes()


def test_repr_tells_where_it_is_and_hides_passwords(tmp_path: Path) -> None:
    assert repr(FancyCheckpoint(tmp_path)) == f"FancyCheckpoint(local_path={str(tmp_path)!r})"
    assert repr(Checkpoint.from_dict({"a": 1})) == "Checkpoint(data_dict with 'a')"
    assert "canary" not in repr(Checkpoint(uri="s3://key:canary@bucket/x"))


def test_a_checkpoint_is_not_copied_into_itself(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_directory(Checkpoint.from_dict({"a": 1}).to_directory(tmp_path / "one"))
    with pytest.raises(ConfigError, match="part of itself"):
        checkpoint.to_directory(tmp_path / "one" / "copy")
    assert checkpoint.to_directory(tmp_path / "one") == str(tmp_path / "one")


def test_a_copy_keeps_the_class_that_is_not_loaded(tmp_path: Path) -> None:
    """A program that has not imported the class has a plain Checkpoint of it, and may well copy that."""
    saved = FancyCheckpoint.from_dict(DATA).to_directory(tmp_path / "saved")
    copied = Checkpoint(saved).to_directory(tmp_path / "copied")
    assert isinstance(Checkpoint.from_directory(copied), FancyCheckpoint)
    assert isinstance(Checkpoint.from_bytes(Checkpoint(saved).to_bytes()), FancyCheckpoint)


class Prepared(Checkpoint):
    """With a constructor of its own, as a program may have it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.given = set(kwargs)


class MadeOfModel(Checkpoint):
    """With a constructor that takes something else."""

    def __init__(self, model: str) -> None:
        super().__init__(data_dict={"model": model})


def test_a_constructor_that_takes_something_else_is_left_out(tmp_path: Path) -> None:
    path = MadeOfModel("linear").to_directory(tmp_path / "there")
    for read in (Checkpoint.from_directory(path), MadeOfModel.from_directory(path)):
        assert type(read) is MadeOfModel
        assert read.to_dict()["model"] == "linear"


def test_the_constructor_of_a_subclass_is_called(tmp_path: Path) -> None:
    in_memory = Prepared.from_dict({"x": 1})
    assert in_memory.given == {"data_dict"}
    there = Prepared.from_directory(in_memory.to_directory(tmp_path / "there"))
    assert there.given == {"local_path"}
    assert Checkpoint.from_directory(tmp_path / "there").given == {"local_path"}  # type: ignore[attr-defined]
    for checkpoint in (
        in_memory,
        there,
        Prepared.from_bytes(in_memory.to_bytes()),
        Prepared.from_checkpoint(Checkpoint.from_dict({"x": 1})),
    ):
        assert checkpoint.given
        assert checkpoint.to_dict()["x"] == 1


@pytest.mark.parametrize("given", [{"x": 1}, "place", None])
def test_only_a_checkpoint_is_cast(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"from_checkpoint\(\) takes a Checkpoint.*from_dict\(\)"):
        Prepared.from_checkpoint(given)
