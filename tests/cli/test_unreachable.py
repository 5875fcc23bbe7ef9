"""A store that nobody answers for: one sentence, after a few tries."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from paceline.storage import patience
from paceline.storage.patience import Patience
from tests.cli.conftest import Cli


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    s3fs = pytest.importorskip("s3fs")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    s3fs.S3FileSystem.clear_instance_cache()
    yield address
    s3fs.S3FileSystem.clear_instance_cache()  # other tests would get the client of this address


@pytest.mark.parametrize("command", ["ls", "show", "best", "verify"])
def test_the_address_is_named_and_not_much_is_tried(command: str, endpoint: str, cli: Cli) -> None:
    said = cli(command, "s3://bucket/results")
    assert (said.code, said.out, len(said.err.splitlines())) == (1, "", 1)
    assert said.err.startswith("paceline: s3://bucket/results: ")
    assert said.err.endswith(f" failed: there is no connection to {endpoint} (tried 2 times).\n")
    assert patience.current() == Patience(), "what else this process does is as patient as before"
