"""Checkpoints on an S3 store, spoken to over a real connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointCorruptError, CheckpointNotFoundError
from tests.air.damage import committed


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    # fsspec keeps a filesystem by its arguments, and the endpoint is not one of them.
    kind: Any = fsspec.get_filesystem_class("s3")
    kind.clear_instance_cache()
    fsspec.filesystem("s3").mkdirs("checkpoints", exist_ok=True)
    yield "s3://checkpoints"
    kind.clear_instance_cache()


def test_there_and_back(bucket: str, tmp_path: Path) -> None:
    uri = Checkpoint.from_dict({"epoch": 3}).to_uri(f"{bucket}/run/a")
    stored = Checkpoint.from_uri(uri)
    assert stored.uri == uri
    assert stored.to_dict() == {"epoch": 3}
    stored.set_metadata({"by": "hand"})
    assert Checkpoint.from_uri(uri).get_metadata() == {"by": "hand"}
    assert Checkpoint.from_directory(stored.to_directory(tmp_path / "local")).to_dict() == {"epoch": 3}


def test_files_in_folders(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "from" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "from" / "deep" / "er" / "file").write_bytes(b"x" * 100_000)
    uri = Checkpoint(tmp_path / "from").to_uri(f"{bucket}/run/b")
    with Checkpoint.from_uri(uri).as_directory() as path:
        assert Path(path, "deep", "er", "file").read_bytes() == b"x" * 100_000


def test_a_neighbour_with_the_same_beginning_is_not_taken_along(bucket: str, tmp_path: Path) -> None:
    Checkpoint.from_dict({"n": 1}).to_uri(f"{bucket}/run/c")
    Checkpoint.from_dict({"n": 2}).to_uri(f"{bucket}/run/c2")
    copy = Checkpoint.from_uri(f"{bucket}/run/c").to_directory(tmp_path / "c")
    assert {path.name for path in Path(copy).iterdir()} == {"dict_checkpoint.pkl", ".metadata.json"}


def test_nothing_there(bucket: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match="nowhere"):
        Checkpoint.from_uri(f"{bucket}/nowhere").to_dict()


def test_damage_on_the_store_is_noticed(bucket: str, tmp_path: Path) -> None:
    path = committed(Checkpoint.from_dict({"weights": b"w" * 1000}), tmp_path / "checkpoint")
    store: Any = fsspec.filesystem("s3")
    for each in path.iterdir():
        store.put_file(str(each), f"checkpoints/run/d/{each.name}")
    uri = f"{bucket}/run/d"
    assert Checkpoint.from_uri(uri).to_dict()["weights"] == b"w" * 1000
    content = (path / "dict_checkpoint.pkl").read_bytes()
    store.pipe_file("checkpoints/run/d/dict_checkpoint.pkl", content.replace(b"w", b"v", 1))
    checkpoint = Checkpoint.from_uri(uri)
    assert checkpoint.number == 0
    with pytest.raises(CheckpointCorruptError, match=rf"{uri}.*'dict_checkpoint\.pkl'"):
        checkpoint.to_dict()
    with pytest.raises(CheckpointCorruptError), checkpoint.as_directory():
        pass
    store.rm_file("checkpoints/run/d/dict_checkpoint.pkl")
    with pytest.raises(CheckpointCorruptError, match=r"'dict_checkpoint\.pkl'.*missing"):
        checkpoint.to_dict()
