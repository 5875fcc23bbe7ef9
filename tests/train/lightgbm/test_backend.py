"""How LightGBM's workers find each other, and who else they let in."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paceline.train.lightgbm import LightGBMConfig, backend
from tests.train.lightgbm.boosting import numbers, quick_trainer


def test_ports_that_are_taken_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        monkeypatch.setattr(backend, "candidate_ports", lambda: [taken.getsockname()[1], 0])
        with backend.hold_port() as held:
            assert held.getsockname()[1] != taken.getsockname()[1]
            with pytest.raises(OSError), socket.socket() as other:
                other.bind(("", held.getsockname()[1]))


def test_a_port_that_stays_taken_is_told_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "BIND_S", 0.2)
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"port {port}"):
            backend.init_network([("127.0.0.1", port), ("127.0.0.1", port + 1)], port)


@pytest.fixture
def hub() -> Iterator[int]:
    """The port of rank 0 of two workers, which this process is."""
    port = backend.open_hub("127.0.0.1")
    backend.take_place(0, ["127.0.0.1"] * 2)
    yield port
    backend.leave()


def test_strangers_at_the_hub_delay_nobody_for_long(hub: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "HELLO_S", 0.1)
    token = b"t" * 32
    with (
        socket.create_connection(("127.0.0.1", hub)),  # says nothing
        socket.create_connection(("127.0.0.1", hub)) as rude,
        ThreadPoolExecutor(1) as other,
    ):
        rude.sendall(b"\xff" * 1000)
        arriving = other.submit(backend.line_to_hub, ("127.0.0.1", hub), token, 1)
        backend.let_everyone_in(token, 30)
        line = arriving.result()
        line.send_bytes(b"rank 1")
        assert backend.gather(b"rank 0") == [b"rank 0", b"rank 1"]
        line.close()


def test_strangers_at_the_hub_do_not_extend_the_deadline(hub: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "HELLO_S", 0.1)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", hub))) for _ in range(20)]
        with pytest.raises(ConnectionError, match=r"0\.3 s.*rank\(s\) 1\b"):
            backend.let_everyone_in(b"t" * 32, 0.3)
        with pytest.raises(ConnectionResetError):  # still waiting in line when the hub gave up
            silent[-1].recv(1)


def test_a_stranger_that_sends_byte_by_byte_has_no_more_time(hub: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "HELLO_S", 0.1)
    token = b"t" * 32

    def drip(stranger: socket.socket) -> bool:
        """Whether the hub cut the connection before everything was sent."""
        try:
            stranger.sendall(struct.pack("!i", 256))
            for _ in range(100):
                stranger.sendall(b"x")
                time.sleep(0.02)
        except OSError:
            return True
        return False

    with socket.create_connection(("127.0.0.1", hub)) as stranger, ThreadPoolExecutor(2) as others:
        dripping = others.submit(drip, stranger)
        arriving = others.submit(backend.line_to_hub, ("127.0.0.1", hub), token, 1)
        backend.let_everyone_in(token, 30)
        arriving.result().close()
        assert dripping.result()


def test_a_rank_that_does_not_come_is_named_in_time(hub: int) -> None:
    with pytest.raises(ConnectionError, match=r"0\.2 s.*rank\(s\) 1\b"):
        backend.let_everyone_in(b"t" * 32, 0.2)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", hub))


def test_nothing_listens_once_the_workers_are_connected(tmp_path: Any) -> None:
    """LightGBM listens on all interfaces while it connects, and only then."""

    def listening(env: Any) -> None:
        import psutil

        connections = psutil.Process().net_connections(kind="inet")
        names = [f"{each.laddr}" for each in connections if each.status == psutil.CONN_LISTEN]
        (tmp_path / "listening").open("a").write("".join(names))

    quick_trainer(
        {"train": numbers(100)}, num_boost_round=2, callbacks=[listening], lightgbm_config=LightGBMConfig()
    ).fit()
    assert (tmp_path / "listening").read_text() == ""
