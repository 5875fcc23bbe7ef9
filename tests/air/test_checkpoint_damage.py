"""Whatever reads a committed checkpoint notices that it is damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError
from paceline.air.result import Result
from paceline.storage.stager import Stager
from paceline.train import CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig
from tests.air.damage import committed, flip


@pytest.fixture
def of_dict(tmp_path: Path) -> Path:
    return committed(Checkpoint.from_dict({"weights": b"w" * 10_000}), tmp_path / "checkpoint_000000")


@pytest.fixture
def of_files(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "model.bin").write_bytes(b"m" * 10_000)
    (source / "other.bin").write_bytes(b"o" * 10_000)
    return committed(Checkpoint.from_directory(source), tmp_path / "checkpoint_000000")


def as_directory(checkpoint: Checkpoint) -> None:
    with checkpoint.as_directory():
        pass


def to_stager(checkpoint: Checkpoint) -> None:
    """As a run does that starts from, or takes over, another run's checkpoint."""
    with Stager(Path(str(checkpoint.path)).with_name("staging")) as stager:
        checkpoint.write_files(stager)


def to_directory(checkpoint: Checkpoint) -> None:
    shutil.rmtree(checkpoint.to_directory())


READERS: dict[str, Callable[[Checkpoint], Any]] = {
    "to_dict": Checkpoint.to_dict,
    "to_directory": to_directory,
    "as_directory": as_directory,
    "to_bytes": Checkpoint.to_bytes,
    "to_uri": lambda checkpoint: checkpoint.to_uri("memory://damage/copy"),
    "verify": Checkpoint.verify,
    "to_stager": to_stager,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_flipped_bit_is_noticed(reader: str, of_files: Path) -> None:
    READERS[reader](Checkpoint.from_directory(of_files))
    flip(of_files / "deep" / "model.bin")
    with pytest.raises(CheckpointCorruptError, match=r"'deep/model\.bin' changed"):
        READERS[reader](Checkpoint.from_directory(of_files))


@pytest.mark.parametrize("reader", READERS)
def test_a_missing_and_an_extra_file_are_noticed(reader: str, of_files: Path) -> None:
    (of_files / "stranger").touch()
    with pytest.raises(CheckpointCorruptError, match=r"extra.*'stranger'"):
        READERS[reader](Checkpoint.from_directory(of_files))
    (of_files / "stranger").unlink()
    (of_files / "deep" / "model.bin").unlink()
    with pytest.raises(CheckpointCorruptError, match=r"'deep/model\.bin'.*missing"):
        READERS[reader](Checkpoint.from_directory(of_files))


@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_manifest_is_noticed(reader: str, of_files: Path) -> None:
    flip(of_files / "MANIFEST.json")
    with pytest.raises(CheckpointCorruptError, match=r"MANIFEST\.json.*damaged"):
        READERS[reader](Checkpoint.from_directory(of_files))


def test_a_dict_is_not_unpickled_from_damaged_bytes(of_dict: Path) -> None:
    checkpoint = Checkpoint.from_directory(of_dict)
    assert checkpoint.to_dict()["weights"] == b"w" * 10_000
    flip(of_dict / "dict_checkpoint.pkl")
    with pytest.raises(CheckpointCorruptError, match=r"dict_checkpoint\.pkl"):
        checkpoint.to_dict()
    (of_dict / "dict_checkpoint.pkl").unlink()
    with pytest.raises(CheckpointCorruptError, match=r"'dict_checkpoint\.pkl'.*missing"):
        checkpoint.to_dict()


def test_nothing_of_a_damaged_checkpoint_stays_where_it_was_copied_to(of_files: Path, tmp_path: Path) -> None:
    flip(of_files / "other.bin")
    with pytest.raises(CheckpointCorruptError):
        Checkpoint.from_directory(of_files).to_directory(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(CheckpointCorruptError):
        Checkpoint.from_directory(of_files).to_directory(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes").exists()
    assert not (tmp_path / "mine" / "other.bin").exists()


def test_only_what_is_read_is_verified(tmp_path: Path) -> None:
    from paceline.data.preprocessors import StandardScaler

    content = Checkpoint.from_dict({"a": 1})
    content.set_preprocessor(StandardScaler(["x"]))
    content.set_metadata({"note": "mine"})
    path = committed(content, tmp_path / "checkpoint_000000")
    checkpoint = Checkpoint.from_directory(path)
    flip(path / "dict_checkpoint.pkl")
    assert checkpoint.get_preprocessor() is not None
    assert checkpoint.get_metadata() == {"note": "mine"}
    flip(path / ".preprocessor.json")
    with pytest.raises(CheckpointCorruptError, match=r"\.preprocessor\.json"):
        checkpoint.get_preprocessor()
    assert checkpoint.number == 0
    flip(path / ".metadata.json")
    with pytest.raises(CheckpointCorruptError, match=r"\.metadata\.json"):
        checkpoint.get_metadata()


def test_what_no_run_has_committed_cannot_be_verified(of_dict: Path, tmp_path: Path) -> None:
    copy = Checkpoint.from_directory(of_dict).to_directory(str(tmp_path / "copy"))
    for checkpoint in (Checkpoint.from_dict({"x": 1}), Checkpoint.from_directory(copy)):
        with pytest.raises(CheckpointError, match="verified"):
            checkpoint.verify()


@pytest.mark.parametrize("file", [".metadata.json", "MANIFEST.json", "dict_checkpoint.pkl"])
def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(file: str, of_dict: Path) -> None:
    (of_dict / file).unlink()
    os.mkfifo(of_dict / file)
    for read in (Checkpoint.to_dict, Checkpoint.get_metadata, Checkpoint.verify):
        if (file, read) != ("dict_checkpoint.pkl", Checkpoint.get_metadata):
            with pytest.raises(CheckpointError, match="regular file"):
                read(Checkpoint(of_dict))


@pytest.mark.parametrize("file", [".metadata.json", "MANIFEST.json"])
def test_damage_that_hides_the_class_is_noticed_at_once(file: str, of_dict: Path) -> None:
    (of_dict / file).write_bytes(b"damage")
    with pytest.raises(CheckpointCorruptError, match=file):
        Checkpoint.from_directory(of_dict)
    checkpoint = Checkpoint(of_dict)  # a mere reference
    with pytest.raises(CheckpointCorruptError, match=file):
        checkpoint.to_dict()


def test_a_deleted_checkpoint_is_not_called_damaged(of_dict: Path) -> None:
    checkpoint = Checkpoint.from_directory(of_dict)
    of_dict.rename(of_dict.with_name("trash"))
    for reader in READERS.values():
        with pytest.raises(CheckpointNotFoundError):
            reader(checkpoint)


def test_a_directory_of_ones_own_may_have_a_file_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text('{"name": "of other software"}')
    (tmp_path / "model").write_text("m")
    with Checkpoint.from_directory(tmp_path).as_directory() as folder:
        assert Path(folder, "model").read_text() == "m"


def test_every_bit_of_a_packed_file_counts(tmp_path: Path) -> None:
    data = Checkpoint.from_dict({"weights": b"0123456789" * 100}).to_bytes()
    start = data.index(b"0123456789")
    for position in range(start, start + 1000, 99):
        damaged = bytearray(data)
        damaged[position] ^= 4
        checkpoint = Checkpoint.from_bytes(bytes(damaged))  # the metadata is fine
        for reader in (Checkpoint.to_dict, to_directory, as_directory, Checkpoint.verify):
            with pytest.raises(CheckpointCorruptError, match=r"dict_checkpoint\.pkl"):
                reader(checkpoint)


def test_a_remote_checkpoint_is_verified(of_files: Path) -> None:
    import fsspec

    filesystem: Any = fsspec.filesystem("memory")
    for name in ("deep/model.bin", "other.bin", ".metadata.json", "MANIFEST.json"):
        filesystem.put_file(str(of_files / name), f"/damage/run/{name}")
    readers = [Checkpoint.to_dict, to_directory, as_directory, Checkpoint.to_bytes, Checkpoint.verify]
    try:
        for reader in readers:
            reader(Checkpoint.from_uri("memory://damage/run"))
        filesystem.pipe_file("/damage/run/deep/model.bin", b"m" * 9_999 + b"n")
        for reader in readers:
            with pytest.raises(CheckpointCorruptError, match=r"memory://damage/run.*'deep/model\.bin'"):
                reader(Checkpoint.from_uri("memory://damage/run"))
        filesystem.rm_file("/damage/run/deep/model.bin")
        for reader in readers:
            with pytest.raises(CheckpointCorruptError, match=r"'deep/model\.bin'.*missing"):
                reader(Checkpoint.from_uri("memory://damage/run"))
        filesystem.pipe_file("/damage/run/.metadata.json", b"damage")
        with pytest.raises(CheckpointCorruptError, match=r"\.metadata\.json"):
            Checkpoint.from_uri("memory://damage/run").get_metadata()
    finally:
        filesystem.rm("/damage", recursive=True)


# Of a run


def three_checkpoints() -> None:
    for loss in (3.0, 1.0, 2.0):
        train.report({"loss": loss, "accuracy": -loss}, checkpoint=Checkpoint.from_dict({"loss": loss}))


def fitted(num_to_keep: int | None = None) -> Result:
    return DataParallelTrainer(
        three_checkpoints,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            engine="inline",
            checkpoint_config=CheckpointConfig(
                num_to_keep=num_to_keep, checkpoint_score_attribute="loss", checkpoint_score_order="min"
            ),
        ),
    ).fit()


def test_a_damaged_checkpoint_of_a_result_names_the_next_best_one(results_dir: Path) -> None:
    path = Path(fitted().path)
    for directory in sorted(path.glob("checkpoint_*")):
        flip(directory / "dict_checkpoint.pkl")
    result = Result.from_path(path)
    best = result.get_best_checkpoint("loss", "min")
    assert best is not None
    with pytest.raises(CheckpointCorruptError, match=r"checkpoint_000001.* next best .*/checkpoint_000002$"):
        best.to_dict()
    worst = result.get_best_checkpoint("loss", "max")
    assert worst is not None
    with pytest.raises(CheckpointCorruptError, match=r"checkpoint_000000.* next best .*/checkpoint_000002$"):
        worst.to_directory()
    assert result.checkpoint is not None
    with pytest.raises(CheckpointCorruptError, match=r"checkpoint_000002.* next best .*/checkpoint_000001$"):
        result.checkpoint.to_dict()
    order = [checkpoint for checkpoint, _ in Result.from_path(path).best_checkpoints]
    with pytest.raises(CheckpointCorruptError, match=r"checkpoint_000001.* next best .*/checkpoint_000002$"):
        order[-1].verify()
    with pytest.raises(CheckpointCorruptError, match=r"checkpoint_000000.* next best .*/checkpoint_000001$"):
        as_directory(order[0])


def test_a_checkpoint_that_was_only_in_memory_is_there(results_dir: Path) -> None:
    result = fitted(num_to_keep=0)
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["loss"] == 2.0


def test_the_only_checkpoint_names_no_other(of_dict: Path) -> None:
    flip(of_dict / "dict_checkpoint.pkl")
    checkpoint = Checkpoint.from_directory(of_dict)
    for result in (Result(checkpoint=checkpoint), Result(checkpoint=checkpoint, best_checkpoints=[(checkpoint, {})])):
        assert result.checkpoint is not None
        with pytest.raises(CheckpointCorruptError) as caught:
            result.checkpoint.to_dict()
        assert "next best" not in str(caught.value)
