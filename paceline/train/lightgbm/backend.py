"""LightGBMBackend: connects the workers of a run, by LightGBM's network and by a line of our own.

LightGBM's network is for its training only. What the workers must agree on before (categories, a common sample of the
rows) goes over the line: each rank has one to rank 0, opened with a key that only the workers of this run have. On one
machine it is on the loopback address.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air import session as session_slot
from paceline.air.checks import names_what_was_meant
from paceline.engine.places import LOOPBACK
from paceline.run.backend import Backend, BackendConfig, WorkerState
from paceline.train.network import addresses_of, listening_socket

if TYPE_CHECKING:
    from paceline.engine.base import WorkerGroup

_LEAVE_TIMEOUT_S = 5.0
_MARGIN_S = 1.0
"""So that rank 0, which knows who is missing, is the first to say so."""


class LightGBMBackend(Backend):
    """The workers are connected before the train function starts, and stay so for all that it trains.

    While they connect, LightGBM listens on all interfaces of its machine, which it offers no way to change. The
    ports are closed again when everyone is there, some milliseconds later.
    """

    preload: ClassVar[tuple[str, ...]] = (
        "lightgbm",
        "pyarrow",
        "pyarrow.compute",
        "multiprocessing.connection",
        "cloudpickle",
        "xxhash",
        "paceline.run.worker",
        "paceline.train.lightgbm.loop",
        "paceline.train.lightgbm.matrix",
    )

    collective_frames: ClassVar[tuple[str, ...]] = ("paceline.train.lightgbm.backend:gather",)
    mixed_frames: ClassVar[tuple[str, ...]] = ("lightgbm.basic:update", "lightgbm.basic:construct")

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        if worker_group.world_size == 1:
            return
        token, seconds = secrets.token_bytes(32), worker_group.placement.start_timeout_s
        addresses = addresses_of(worker_group.places)
        hub = worker_group.execute_single(0, open_hub, addresses[0])
        for rank in range(worker_group.world_size):
            worker_group.execute_single(rank, take_place, rank, addresses)
        worker_group.execute(join, hub, token, seconds, timeout=seconds + _MARGIN_S)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        worker_group.execute(leave, timeout=_LEAVE_TIMEOUT_S)


class LightGBMLoopBackend(LightGBMBackend):
    """For workers that run our own loop: without scikit-learn they start most of a second earlier."""

    preload: ClassVar[tuple[str, ...]] = ("paceline.train.lightgbm.light_import", *LightGBMBackend.preload)


@names_what_was_meant()
@dataclass
class LightGBMConfig(BackendConfig):
    """There is nothing to set: addresses and ports are found at the start of every attempt."""

    @property
    def backend_cls(self) -> type[LightGBMBackend]:
        return LightGBMBackend


@dataclass
class LightGBMLoopConfig(LightGBMConfig):
    """The same for workers that are given parameters, not a function of the user's."""

    @property
    def backend_cls(self) -> type[LightGBMBackend]:
        return LightGBMLoopBackend


# -- in a worker -----------------------------------------------------------------------------------
# These functions run in the thread that will train: LightGBM keeps its network by thread.


_PATIENCE_MINUTES = 7 * 24 * 60
"""How long LightGBM waits for a peer. That one died is noticed by the driver, at once; one that is busy (it stores a
checkpoint, it waits in a callback) is waited for."""
_LISTEN_S = 20.0
BIND_S = 5.0
"""How long to retry a port that is taken."""
HELLO_S = 5.0
"""How long a peer that connects to the hub may take to show the key: others wait behind it."""
_LOWEST_PORT = 20000


@dataclass
class NetworkMember(WorkerState):
    """This worker's place in the network, and its lines."""

    rank: int = 0
    addresses: list[str] = field(default_factory=lambda: [LOOPBACK])
    """Where the ranks reach each other, by rank."""
    hub: socket.socket | None = None
    """On rank 0, until everyone is there: where the others come to."""
    lines: list[Connection] = field(default_factory=list)
    """On rank 0 the lines to ranks 1, 2, ...; on the others the one to rank 0."""

    @property
    def world_size(self) -> int:
        return len(self.addresses)

    def close(self) -> None:
        for line in self.lines:
            line.close()


def open_hub(address: str) -> int:
    """On rank 0: open the port to which the others will connect their lines."""
    NetworkMember.here().hub = hub = listening_socket(address)
    return int(hub.getsockname()[1])


def take_place(rank: int, addresses: Sequence[str]) -> None:
    member = NetworkMember.here()
    member.rank, member.addresses = rank, list(addresses)


def join(hub_port: int, token: bytes, timeout_s: float) -> None:
    """Connect this rank's line and its LightGBM with all others."""
    member = NetworkMember.here()
    if member.rank == 0:
        let_everyone_in(token, timeout_s)
    else:
        member.lines = [line_to_hub((member.addresses[0], hub_port), token, member.rank)]
    _join_lightgbm()


def leave() -> None:
    """Close what `join` opened."""
    if NetworkMember.here().world_size > 1:
        from lightgbm.basic import _LIB  # type: ignore[attr-defined]  # the C interface

        _LIB.LGBM_NetworkFree()
    NetworkMember.end()


def get_network_params() -> dict[str, Any]:
    """Parameters with which `lightgbm.train` uses all workers of the run: ``{**params, **get_network_params()}``.

    The workers are connected already, so there are no addresses in it. With one worker it is empty.
    """
    world_size = session_slot.get_world_size()
    if world_size == 1:
        return {}
    return {"num_machines": world_size, "tree_learner": "data", "pre_partition": True}


def gather(value: bytes) -> list[bytes]:
    """The values of all ranks, by rank, on every rank. All ranks must call it."""
    member = NetworkMember.here()
    if member.world_size == 1:
        return [value]
    try:
        if member.rank != 0:
            hub = member.lines[0]
            hub.send_bytes(value)
            return [hub.recv_bytes() for _ in range(member.world_size)]
        values = [value, *(line.recv_bytes() for line in member.lines)]
        for line in member.lines:
            for each in values:
                line.send_bytes(each)
        return values
    except (EOFError, OSError) as error:
        raise ConnectionError("connection closed by peer: another worker ended while the data was prepared") from error


# -- our own line ---------------------------------------------------------------------------------


def line_to_hub(hub: tuple[str, int], token: bytes, rank: int) -> Connection:
    """On ranks above 0: a line to rank 0, which says who is calling."""
    line = _without_delay(Client(hub, authkey=token))
    line.send_bytes(rank.to_bytes(4))
    return line


def let_everyone_in(token: bytes, timeout_s: float) -> None:
    """On rank 0: wait for the lines of all others, and for nobody else."""
    member = NetworkMember.here()
    assert member.hub is not None
    hub, member.hub = member.hub, None
    arrived: dict[int, Connection] = {}
    deadline = time.monotonic() + timeout_s
    with hub:
        while missing := set(range(1, member.world_size)) - arrived.keys():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                names = ", ".join(map(str, sorted(missing)))
                raise ConnectionError(
                    f"LightGBM's workers did not meet within {timeout_s:g} s: rank(s) {names} did not come to rank 0."
                )
            hub.settimeout(left_s)
            try:
                line = Connection(hub.accept()[0].detach())
            except OSError:  # the time is over, or the peer hung up first
                continue
            try:
                arrived[_rank_at(line, token, min(HELLO_S, left_s))] = line
            except (AuthenticationError, EOFError, OSError):  # not a worker: a program that tries ports
                line.close()
    member.lines = [arrived[rank] for rank in sorted(arrived)]


def _rank_at(line: Connection, token: bytes, seconds: float) -> int:
    """Who is at the other end, if it has the key and shows it within `seconds`."""
    _without_delay(line)
    with _socket_of(line) as connected:
        cut = threading.Timer(seconds, _shut_down, [connected])  # a socket timeout would restart at each byte
        cut.start()
        try:
            deliver_challenge(line, token)
            answer_challenge(line, token)
            return int.from_bytes(line.recv_bytes(4))
        finally:
            cut.cancel()
            cut.join()


def _shut_down(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the peer has hung up
        connected.shutdown(socket.SHUT_RDWR)


def _without_delay(line: Connection) -> Connection:
    """Small messages that go to and fro in each round must not wait to be sent together: that costs 40 ms each time."""
    with _socket_of(line) as connected:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def _socket_of(line: Connection) -> socket.socket:
    return socket.socket(fileno=os.dup(line.fileno()))


# -- LightGBM's network -----------------------------------------------------------------------------


def _join_lightgbm() -> None:
    """Smaller ranks connect to larger ones. They wait until those on their own machine listen, which can be seen:
    LightGBM itself tries again after 0.2 s."""
    member = NetworkMember.here()
    held = hold_port()
    ports = [int.from_bytes(value) for value in gather(held.getsockname()[1].to_bytes(4))]
    endpoints = list(zip(member.addresses, ports, strict=True))
    own_address, own_port = endpoints[member.rank]
    _wait_until_listening([port for address, port in endpoints[member.rank + 1 :] if address == own_address])
    held.close()
    init_network(endpoints, own_port)


def hold_port() -> socket.socket:
    """A socket that is bound to a free port, so that nobody else gets it until LightGBM binds it.

    LightGBM cannot take the socket over, nor share the port with it, so it is closed a moment before. Nobody is given
    the port by chance in that moment: it lies below those that the system hands out.
    """
    for port in candidate_ports():
        held = socket.socket()
        try:
            held.bind(("", port))
        except OSError:
            held.close()
            continue
        return held
    raise OSError("There is no free port for LightGBM.")


def candidate_ports() -> Iterable[int]:
    """Ports to try, in this order; 0 lets the system choose."""
    try:
        handed_out_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        handed_out_from = 0
    below = range(_LOWEST_PORT, handed_out_from)
    seeded = random.Random(os.urandom(16))  # not the user's random state, which forked workers share
    return [*seeded.sample(below, min(100, len(below))), 0]


def _wait_until_listening(ports: list[int]) -> None:
    """Where it cannot be seen, LightGBM tries often enough by itself."""
    missing, deadline = set(ports), time.monotonic() + _LISTEN_S
    while missing and time.monotonic() < deadline:
        listening = _listening_ports()
        if listening is None:
            return
        missing -= listening
        if missing:
            time.sleep(0.001)


def _listening_ports() -> set[int] | None:
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return None
    entries = (line.split() for line in lines)
    return {int(entry[1].rpartition(":")[2], 16) for entry in entries if entry[3] == "0A"}


def init_network(endpoints: Sequence[tuple[str, int]], own_port: int) -> None:
    """Returns when all ranks, which are at these addresses and ports, are connected.

    A port that was taken after all is tried again for a while. Another one cannot be chosen: the other ranks may
    already be inside LightGBM, which cannot be called back.
    """
    from lightgbm.basic import _LIB, LightGBMError, _safe_call  # type: ignore[attr-defined]  # the C interface

    machines = ",".join(f"{address}:{port}" for address, port in endpoints).encode()
    deadline = time.monotonic() + BIND_S
    while True:
        try:
            with _silence():
                _safe_call(_LIB.LGBM_NetworkInit(machines, own_port, _PATIENCE_MINUTES, len(endpoints)))
            return
        except LightGBMError as error:
            if "Binding port" not in str(error) or time.monotonic() > deadline:
                raise ConnectionError(
                    f"LightGBM could not connect the workers over port {own_port}: {error}"
                ) from error
            time.sleep(0.05)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """LightGBM tells in detail how it connects, partly from a thread that writes to the descriptor itself."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
