"""Who is not the agent or the worker that the driver started gets nowhere, and harms nobody."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.air.errors import EngineError
from paceline.engine.frames import FrameSocket
from paceline.engine.reactor import Reactor
from paceline.engine.remote import line, messages, takeover
from paceline.engine.remote.agent_line import AgentLine
from paceline.engine.remote.group import RemoteGroup
from paceline.engine.remote.line import AGENT, HELLO, MAGIC, WORKER, Caller, Listener, dial
from tests.engine.remote.conftest import StartGroup
from tests.engine.remote.engine import AgentsEngine


def connect(engine: AgentsEngine) -> socket.socket:
    return socket.create_connection(engine.listener.address, timeout=30)


def is_hung_up_on(sock: socket.socket, engine: AgentsEngine) -> bool:
    """Serve the driver until it closes the connection; what it sends meanwhile is thrown away."""
    for _ in range(200):
        engine.reactor.run_once(0.1)
        while select.select([sock], [], [], 0)[0]:
            try:
                if not sock.recv(4096):
                    return True
            except ConnectionError:
                return True
    return False


def still_works(group: RemoteGroup) -> bool:
    pids = group.processes()
    return group.execute(os.getpid) == [pids[rank] for rank in range(group.world_size)]


@pytest.mark.parametrize(
    "first_words",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01", id="tls"),
        pytest.param(b"PC" + b"\0" * 200, id="almost"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_strangers_are_hung_up_on(engine: AgentsEngine, start_group: StartGroup, first_words: bytes) -> None:
    group = start_group()
    with connect(engine) as sock:
        sock.sendall(first_words)
        if not first_words:
            sock.shutdown(socket.SHUT_WR)
        assert is_hung_up_on(sock, engine)
    assert still_works(group)


def test_peers_without_the_token_are_disconnected(engine: AgentsEngine, start_group: StartGroup) -> None:
    """It sees a proof of the driver, and cannot make one."""
    group = start_group()
    with connect(engine) as sock:
        sock.sendall(HELLO.pack(MAGIC, WORKER, group.number, 0, b"n" * 16) + b"x" * line.DIGEST_BYTES)
        assert is_hung_up_on(sock, engine)
    assert still_works(group)


def in_thread(work: Callable[[], object]) -> Callable[[Callable[[], None]], object]:
    """Run `work` in a thread while the driver is served here; gives what it returned or raised."""
    import threading

    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait(serve: Callable[[], None]) -> object:
        while thread.is_alive():
            serve()
        return results[0]

    return wait


def test_a_recorded_conversation_cannot_be_replayed(engine: AgentsEngine, start_group: StartGroup) -> None:
    """S9."""
    group = start_group()
    recorded: list[bytes] = []

    def record() -> None:
        """What dial() sends, word for word, to a group that is unknown."""
        with connect(engine) as sock:
            hello = HELLO.pack(MAGIC, WORKER, 10**6, 0, b"n" * 16)
            sock.sendall(hello)
            answer = line._receive(sock, line.ANSWER_BYTES)
            proof = line._digest(engine.token, b"caller", hello, answer[: line.NONCE_BYTES])
            sock.sendall(proof)
            recorded.extend([hello, proof])

    in_thread(record)(lambda: engine.reactor.run_once(0.05))
    with connect(engine) as sock:
        sock.sendall(b"".join(recorded))
        assert is_hung_up_on(sock, engine)
    assert still_works(group)


@pytest.mark.parametrize("kind", [AGENT, WORKER])
def test_nobody_takes_the_place_of_another(engine: AgentsEngine, start_group: StartGroup, kind: int) -> None:
    """Not even with the token: an agent or a worker that is connected stays the one."""
    group = start_group()
    number = group.number if kind == WORKER else 1
    for rank in (0, 1, 7):
        caller = Caller(kind, number, rank)
        sock = in_thread(lambda caller=caller: dial(engine.listener.address, engine.token, caller))(
            lambda: engine.reactor.run_once(0.05)
        )
        assert isinstance(sock, socket.socket)
        with sock:
            assert is_hung_up_on(sock, engine)
    assert still_works(group)


@pytest.mark.parametrize("words", [b"\xc1", b"\x81\xa4type\xa4Nope"], ids=["garbage", "unknown"])
def test_an_agent_that_cannot_be_understood_is_given_up(
    engine: AgentsEngine, start_group: StartGroup, words: bytes
) -> None:
    """One of another version, say. It costs nobody else anything."""
    group = start_group()
    strange = AgentLine("n9 (127.0.0.9)", engine.reactor)
    engine._lines[900] = strange
    sock = in_thread(lambda: dial(engine.listener.address, engine.token, Caller(AGENT, 900)))(
        lambda: engine.reactor.run_once(0.05)
    )
    assert isinstance(sock, socket.socket)
    with sock:
        FrameSocket(sock).send(messages.CONTROL, words)
        assert is_hung_up_on(sock, engine)
    assert strange.lost.startswith("the agent of n9 (127.0.0.9) sent something unreadable: ")
    assert still_works(group)
    del engine._lines[900]


def test_an_agent_does_not_talk_to_a_false_driver() -> None:
    """It proves nothing to somebody who has not proven himself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        wait = in_thread(lambda: dial(server.getsockname()[:2], b"token", Caller(AGENT, 1)))
        sock, _ = server.accept()
        with sock:
            assert len(line._receive(sock, HELLO.size)) == HELLO.size
            sock.sendall(os.urandom(line.ANSWER_BYTES))
            error = wait(lambda: None)
            assert isinstance(error, EngineError)
            assert "is not the driver of this run" in str(error)
            sock.settimeout(30)
            assert sock.recv(1) == b""


def test_the_oldest_strangers_make_room_for_others(
    engine: AgentsEngine, start_group: StartGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "MOST_STRANGERS", 16)
    socks = [connect(engine)]
    for _ in range(line.MOST_STRANGERS):
        socks.append(connect(engine))
        engine.reactor.run_once(0.0)
    assert is_hung_up_on(socks[0], engine)
    assert still_works(start_group())
    for sock in socks:
        sock.close()


def test_an_idle_stranger_goes_though_nobody_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "GREETING_S", 0.1)
    reactor = Reactor()
    listener = Listener("127.0.0.1", b"token", reactor, lambda caller, sock: sock.close())
    with socket.create_connection(listener.address) as sock:
        deadline = time.monotonic() + 20
        while not select.select([sock], [], [], 0)[0] and time.monotonic() < deadline:
            reactor.run_once(0.1)
        assert sock.recv(1) == b""
    listener.close()
    reactor.close()


FULL_DRIVER = """
import os, resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from paceline.engine.reactor import Reactor
from paceline.engine.remote.line import Listener
reactor = Reactor()
listener = Listener("127.0.0.1", b"token", reactor, lambda caller, sock: sock.close())
others = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
print(listener.address[1], flush=True)
input()
deadline = time.monotonic() + 1.0
while time.monotonic() < deadline:
    reactor.run_once(0.1)
os.close(os.open("/dev/null", os.O_RDONLY))
began, used = time.monotonic(), time.process_time()
while time.monotonic() < began + 1.0:
    reactor.run_once(0.1)
print(time.process_time() - used, flush=True)
"""


def test_strangers_leave_the_driver_its_descriptors() -> None:
    """It can still open files, and does not run in circles because it cannot accept more."""
    with subprocess.Popen(
        [sys.executable, "-c", FULL_DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        port = int(driver.stdout.readline())
        socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        driver.stdin.write("\n")
        driver.stdin.flush()
        cpu_s = float(driver.stdout.readline())
        for sock in socks:
            sock.close()
    assert cpu_s < 0.5


def test_an_agent_makes_place_only_for_its_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody on the machine can see the name of its socket, and connect."""
    settings = messages.AgentSettings(("127.0.0.1", 1), os.urandom(32), 1, 60.0, node="node")
    place = takeover.take_place(settings)
    assert place is not None
    with place, socket.socket(socket.AF_UNIX) as other:
        other.connect(place.getsockname())
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
            assert not takeover.is_wanted(place)
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(place.getsockname())
            assert takeover.is_wanted(place)


def test_an_agent_of_another_user_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a process that cannot be seen from here: its number would be 0, and mean the own process group."""
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    name = "\0paceline-test-" + os.urandom(8).hex()
    with socket.socket(socket.AF_UNIX) as earlier:
        earlier.bind(name)
        earlier.listen()
        for peer in ((0, os.geteuid()), (os.getpid(), os.geteuid() + 1)):
            monkeypatch.setattr(takeover, "_peer", lambda sock, peer=peer: peer)
            takeover._ask_to_leave(name, must=True)
        assert killed == []
        monkeypatch.setattr(takeover, "_peer", lambda sock: (4711, os.geteuid()))
        takeover._ask_to_leave(name, must=True)
    assert killed == [4711]


def test_a_burst_of_connections_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than there is place for: they wait until others have proven themselves."""
    monkeypatch.setattr(line, "MOST_STRANGERS", 4)
    reactor, connected = Reactor(), []
    listener = Listener("127.0.0.1", b"token", reactor, lambda caller, sock: connected.append(sock))
    with ThreadPoolExecutor(40) as pool:
        dialling = [pool.submit(dial, listener.address, b"token", Caller(WORKER, 1, rank)) for rank in range(40)]
        deadline = time.monotonic() + 30
        while len(connected) < 40 and time.monotonic() < deadline:
            reactor.run_once(0.05)
        socks = [future.result() for future in dialling]
    assert len(connected) == 40
    for sock in (*socks, *connected):
        sock.close()
    listener.close()
    reactor.close()


PLACE = """
import sys
from paceline.engine.remote.messages import AgentSettings
from paceline.engine.remote.takeover import take_place
place = take_place(AgentSettings(("127.0.0.1", 1), sys.argv[1].encode(), 1, 60.0, node="node"))
print("taken", flush=True)
input()
"""


def test_an_agent_that_accepts_nothing_is_killed() -> None:
    """One that is stopped, say."""
    token = os.urandom(16).hex()
    command = [sys.executable, "-c", PLACE, token]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as earlier:
        assert earlier.stdout is not None
        assert earlier.stdout.readline() == b"taken\n"
        place = takeover.take_place(messages.AgentSettings(("", 1), token.encode(), 2, 60.0, node="node"))
        assert place is not None
        place.close()
        assert earlier.wait(10) == -signal.SIGKILL
