"""Encrypted connections: nothing passes in the clear, and nobody without a certificate gets in."""

from __future__ import annotations

import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.air.attachment import Attachment
from paceline.air.errors import EngineError
from paceline.engine.base import Message, TaskEnded, WorkerChannel
from paceline.engine.reactor import Reactor
from paceline.engine.remote.line import WORKER, Caller, Listener, dial
from paceline.engine.remote.tls import TlsRelay
from paceline.engine.serialization import pickled
from paceline.testing.engine_tools import collect_to_end, placement_in
from paceline.testing.processes import wait_for
from tests.engine.remote.certificates import make_certificates
from tests.engine.remote.engine import AgentsEngine
from tests.engine.remote.proxy import Network
from tests.engine.remote.test_strangers import connect, in_thread, is_hung_up_on, still_works

pytest.importorskip("cryptography.x509")
VARIABLES = ("PACELINE_TEST_CERT", "PACELINE_TEST_KEY", "PACELINE_TEST_CA")


@pytest.fixture(scope="module")
def tls_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AgentsEngine, Network]]:
    """The second node is behind a network on which everything can be seen."""
    with pytest.MonkeyPatch.context() as patch:
        for name, path in zip(VARIABLES, make_certificates(tmp_path_factory.mktemp("tls") / "own"), strict=True):
            patch.setenv(name, path)
        engine = AgentsEngine(tls_variables=VARIABLES)
        network = Network(engine.listener.address)
        engine.nodes[1].dials = network.address
        engine.prepare()
    yield engine, network
    engine.close()
    network.close()


def exchange(engine: AgentsEngine, folder: Path, secret: bytes) -> None:
    """The secret goes to workers and back in messages, attachments and output."""
    attachment = Attachment(secret * 10_000)

    def task(channel: WorkerChannel, argument: bytes) -> None:
        assert bytes(attachment.view()) == argument * 10_000
        print(argument.decode())
        channel.send(channel.receive() or b"", [Attachment(argument * 10_000)])

    content = pickled(task, "task")
    group = engine.start_group(placement_in(folder, 3))
    try:
        group.start(content.content, [secret] * 3, content.attachments)
        for rank in range(3):
            group.reply(rank, secret)
        events = collect_to_end(group)
        got = [event for event in events if isinstance(event, Message)]
        assert [event.body for event in got] == [secret] * 3
        assert [bytes(event.attachments[0].view()) for event in got] == [secret * 10_000] * 3
        assert sum(isinstance(event, TaskEnded) for event in events) == 3
    finally:
        group.shutdown()
    for request in group.placement.workers:
        assert Path(request.log_path).read_bytes() == secret + b"\n"


def test_nothing_passes_in_the_clear(tls_engine: tuple[AgentsEngine, Network], tmp_path: Path) -> None:
    engine, network = tls_engine
    secret = os.urandom(16).hex().encode()
    exchange(engine, tmp_path, secret)
    assert len(network.seen) > 600_000
    assert secret not in network.seen


def test_without_certificates_it_does(tmp_path: Path) -> None:
    """So that the test above is one."""
    engine = AgentsEngine()
    network = Network(engine.listener.address)
    engine.nodes[1].dials = network.address
    secret = os.urandom(16).hex().encode()
    try:
        exchange(engine, tmp_path, secret)
        assert secret in network.seen
    finally:
        engine.close()
        network.close()


def test_peers_without_a_certificate_are_rejected(tls_engine: tuple[AgentsEngine, Network], tmp_path: Path) -> None:
    """Though it knows the token."""
    engine, _ = tls_engine
    group = engine.start_group(placement_in(tmp_path, 2))
    caller = Caller(WORKER, group.number, 0)
    foreign = TlsRelay(*make_certificates(tmp_path / "foreign"))
    try:
        for tls in (None, foreign):
            refused = in_thread(lambda tls=tls: dial(engine.listener.address, engine.token, caller, tls))
            assert isinstance(refused(lambda: engine.reactor.run_once(0.05)), OSError | EngineError)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with connect(engine) as sock:
            refused = in_thread(lambda: _first_byte(context, sock))
            assert isinstance(refused(lambda: engine.reactor.run_once(0.05)), OSError)
        with connect(engine) as sock:
            sock.sendall(b"not a handshake, but some words")
            assert is_hung_up_on(sock, engine)
        assert still_works(group)
    finally:
        group.shutdown()
        foreign.close()


def _first_byte(context: ssl.SSLContext, sock: socket.socket) -> bytes:
    with context.wrap_socket(sock) as encrypted:
        encrypted.sendall(b"PCL1")
        return encrypted.recv(1)


def test_an_agent_refuses_a_driver_of_another_authority(
    tls_engine: tuple[AgentsEngine, Network], tmp_path: Path
) -> None:
    """Also the other way round: the dialler says nothing to who has no certificate of its authority."""
    engine, _ = tls_engine
    foreign = TlsRelay(*make_certificates(tmp_path / "foreign"))
    error = in_thread(lambda: dial(engine.listener.address, engine.token, Caller(WORKER, 1, 0), foreign))(
        lambda: engine.reactor.run_once(0.05)
    )
    foreign.close()
    assert isinstance(error, OSError)


PEER = """
import sys
from paceline.engine.remote.line import WORKER, Caller, dial
from paceline.engine.remote.tls import TlsRelay
sock = dial(("127.0.0.1", int(sys.argv[1])), b"token", Caller(WORKER, 1, 0), TlsRelay(*sys.argv[2:]))
input()
"""


def test_a_peer_that_hangs_up_is_noticed_though_a_child_of_the_driver_lives(tmp_path: Path) -> None:
    certificates, reactor = make_certificates(tmp_path / "own"), Reactor()
    connected: list[socket.socket] = []
    listener = Listener(
        "127.0.0.1", b"token", reactor, lambda caller, sock: connected.append(sock), TlsRelay(*certificates)
    )
    command = [sys.executable, "-c", PEER, str(listener.address[1]), *certificates]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as peer:
        while not connected and peer.poll() is None:
            reactor.run_once(0.05)
        child = os.fork()
        if child == 0:
            signal.pause()
        try:
            peer.communicate(b"\n")
            assert select.select(connected, [], [], 20)[0]
            assert connected[0].recv(1) == b""
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            connected[0].close()
            listener.close()
            reactor.close()


def test_a_driver_has_descriptors_for_many_encrypted_connections(tmp_path: Path) -> None:
    """Each of them needs three."""
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (60, 4096))\n"
        "from pathlib import Path\n"
        "from paceline.testing.engine_tools import placement_in\n"
        "from tests.engine.remote.engine import AgentsEngine\n"
        f"engine = AgentsEngine(tls_variables={VARIABLES!r})\n"
        "group = engine.start_group(placement_in(Path(sys.argv[1]), 24, heartbeat_timeout_s=None))\n"
        "assert len(group.execute(int)) == 24; engine.close()\n"
    )
    paths = dict(zip(VARIABLES, make_certificates(tmp_path / "own"), strict=True))
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=120, env={**os.environ, **paths})


def relay_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "paceline-tls"]


class OneWay(socket.socket):
    """A connection to somebody who has stopped reading."""

    is_one_way = False

    def send(self, data: Any, flags: int = 0, /) -> int:
        if self.is_one_way:
            raise ConnectionResetError
        return super().send(data, flags)


def connected() -> tuple[OneWay, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs, ours = socket.create_connection(server.getsockname()), server.accept()[0]
    return OneWay(fileno=ours.detach()), theirs


def pair_of(
    relay: TlsRelay, connection: tuple[socket.socket, socket.socket] | None = None
) -> tuple[socket.socket, socket.socket]:
    """The driver's end and the worker's end of an encrypted connection."""
    ours, theirs = connection or connected()
    return relay.encrypt(ours, is_server=True), relay.encrypt(theirs, is_server=False)


def test_nothing_is_left_of_connections_that_are_closed(tmp_path: Path) -> None:
    """Neither a thread nor a descriptor; but what is on its way arrives first."""
    certificates = make_certificates(tmp_path / "own")
    threads, fds = len(relay_threads()), len(os.listdir("/proc/self/fd"))
    relay = TlsRelay(*certificates)
    driver, worker = pair_of(relay)
    driver.sendall(b"x" * 100_000)
    driver.close()
    relay.close()
    with worker, worker.makefile("rb") as file:
        assert len(file.read()) == 100_000
    wait_for(lambda: len(relay_threads()) == threads, "the end of the thread")
    assert len(os.listdir("/proc/self/fd")) == fds


def test_the_last_words_of_who_reads_nothing_any_more_arrive(tmp_path: Path) -> None:
    """A worker that ends while the driver tells it something."""
    relay = TlsRelay(*make_certificates(tmp_path / "own"))
    ours, theirs = connected()
    driver, worker = pair_of(relay, (ours, theirs))
    worker.sendall(b"hello")
    assert driver.recv(5) == b"hello"
    ours.is_one_way = True
    driver.sendall(b"told too late")
    with worker:
        worker.sendall(b"x" * 100_000)
    with driver, driver.makefile("rb") as file:
        assert len(file.read()) == 100_000
    relay.close()


def test_files_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLES[0], "/nonexistent")
    with pytest.raises(EngineError, match=r"PACELINE_TEST_CERT must name a file .*: /nonexistent cannot be read"):
        TlsRelay.from_variables(VARIABLES)
