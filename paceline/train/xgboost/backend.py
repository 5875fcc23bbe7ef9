"""XGBoostBackend: connects the workers of a run in XGBoost's collective."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from paceline.air.checks import names_what_was_meant
from paceline.air.errors import ConfigError
from paceline.run.backend import Backend, BackendConfig, WorkerState
from paceline.train.network import addresses_of, admit_only

if TYPE_CHECKING:
    from paceline.engine.base import WorkerGroup

_LEAVE_TIMEOUT_S = 5.0


class XGBoostBackend(Backend):
    """Rank 0 hosts XGBoost's tracker, where the others reach it; a single worker needs none.

    The driver never loads xgboost: a process that has run it cannot be forked afterwards.
    """

    preload: ClassVar[tuple[str, ...]] = (
        "xgboost",
        "xgboost.tracker",
        "xgboost.collective",
        "xgboost.callback",
        # What every worker of ours goes through.
        "cloudpickle",
        "xxhash",
        "pyarrow.compute",
        "paceline.run.worker",
        "paceline.train.functions",
        "paceline.train.rounds",
        "paceline.train.trees.task",
        "paceline.train.xgboost.callback",
        "paceline.train.xgboost.loop",
    )
    collateral_phrases: ClassVar[tuple[str, ...]] = ("src/collective/result.cc",)  # its network layer
    collective_frames: ClassVar[tuple[str, ...]] = (
        "xgboost.collective:allreduce",
        "xgboost.collective:broadcast",
        "paceline.train.xgboost.backend:gathered",
    )
    mixed_frames: ClassVar[tuple[str, ...]] = ("xgboost.core:update", "xgboost.core:boost", "xgboost.core:eval_set")
    _scratch: str | None = None

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        assert isinstance(backend_config, XGBoostConfig)
        placement = worker_group.placement
        scratch = self._scratch_directory(worker_group)
        for place in worker_group.places:
            own = scratch if place.node.is_drivers else None
            worker_group.execute_single(place.rank, prepare, place.rank, place.threads or 0, own)
        if placement.world_size == 1:
            return
        addresses, seconds = addresses_of(worker_group.places), placement.start_timeout_s
        arguments = worker_group.execute_single(0, host, addresses[0], placement.world_size, seconds)
        worker_group.execute(join, arguments, backend_config.timeout_s, sorted(set(addresses)), timeout=seconds)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        worker_group.execute(leave, _LEAVE_TIMEOUT_S, timeout=2 * _LEAVE_TIMEOUT_S)

    def _scratch_directory(self, worker_group: WorkerGroup) -> str | None:
        """A directory that is gone with this attempt, also where its workers were killed: it is the driver's. None if
        no worker sees it; a worker's own directory on another machine is gone with the worker."""
        if not any(place.node.is_drivers for place in worker_group.places):
            return None
        self._scratch = tempfile.mkdtemp(prefix=".xgboost-", dir=os.path.dirname(worker_group.placement.workers[0].cwd))
        return self._scratch

    def on_end(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


class XGBoostLoopBackend(XGBoostBackend):
    """For workers that run our own loop: without scikit-learn they start most of a second earlier."""

    preload: ClassVar[tuple[str, ...]] = ("paceline.train.xgboost.light_import", *XGBoostBackend.preload)


@names_what_was_meant()
@dataclass
class XGBoostConfig(BackendConfig):
    """How the workers of an XGBoostTrainer are connected."""

    timeout_s: float = 1800
    """How long a worker waits for the others in one exchange, while they compute, before it fails. A worker that
    died is noticed at once."""

    def __post_init__(self) -> None:
        number = isinstance(self.timeout_s, int | float) and not isinstance(self.timeout_s, bool)
        if not number or not 1 <= self.timeout_s < float("inf"):
            raise ConfigError(
                f"XGBoostConfig(timeout_s={self.timeout_s!r}): give a number of seconds of at least 1, e.g. 1800."
            )

    @property
    def backend_cls(self) -> type[XGBoostBackend]:
        return XGBoostBackend


@dataclass
class XGBoostLoopConfig(XGBoostConfig):
    """The same for workers that are given parameters, not a function of the user's."""

    @property
    def backend_cls(self) -> type[XGBoostBackend]:
        return XGBoostLoopBackend


# -- in a worker -----------------------------------------------------------------------------------
# The driver imports this module too, so xgboost is only imported inside of the functions. A worker runs them in the
# thread that trains later: XGBoost's connections belong to the thread that made them.

T = TypeVar("T")

_LOST_PEER = re.compile(
    r"collective/result\.cc|\[(socket|allreduce|allgather|broadcast|comm|comm_group|loop|protocol|tracker|coll)\.(h|cc):\d+"
)
"""In the text of an error of XGBoost's network layer: the file that reports it, or one of the files it passed through.
Which of them are named depends on where the connection was when it was lost."""


@dataclass
class Place(WorkerState):
    """What a worker was told about itself, and its part in the collective."""

    rank: int = 0
    threads: int = 0
    """For XGBoost; 0 leaves it to the library."""
    scratch: str | None = None
    """A directory of this attempt for data that does not fit into memory; whoever made it removes it."""
    tracker: Any = None
    """On rank 0: XGBoost's meeting point, which lives as long as somebody is connected."""
    joined: bool = False


def prepare(rank: int, threads: int, scratch: str | None) -> None:
    """Note what belongs to this rank alone. Where there is no directory of the driver's, it makes one of its own."""
    place = Place.here()
    place.rank, place.threads = rank, threads
    place.scratch = scratch or tempfile.mkdtemp(prefix=".xgboost-", dir=os.getcwd())


def host(address: str, world_size: int, timeout_s: float) -> dict[str, Any]:
    """On rank 0: open the meeting point at the address; returns what the ranks need to find it."""
    from xgboost.tracker import RabitTracker

    tracker = RabitTracker(n_workers=world_size, host_ip=address, sortby="task", timeout=max(1, int(timeout_s)))
    tracker.start()
    Place.here().tracker = tracker
    found: dict[str, Any] = tracker.worker_args()
    return found


def join(arguments: Mapping[str, Any], timeout_s: float, addresses: Sequence[str]) -> None:
    """Connect with all other ranks, which are at these addresses. XGBoost sorts them by name: zero-padded, that is by
    our ranks.

    It keeps listening on all interfaces for word that a worker failed, and ends the process at any connection: only
    those from the group's own machines shall get there.
    """
    from xgboost import collective

    place = Place.here()
    before = set(_listening())
    with contextlib.redirect_stdout(io.StringIO()):  # XGBoost greets every worker, whatever its verbosity
        collective.init(**arguments, dmlc_task_id=f"{place.rank:08d}", dmlc_timeout=int(timeout_s))
    place.joined = True
    for descriptor in set(_listening()) - before:
        admit_only(descriptor, addresses)
    assert collective.get_rank() == place.rank


def leave(timeout_s: float) -> None:
    """Disconnect. Rank 0 stays until the last one has left: the others say goodbye to it."""
    place = Place.here()
    if not place.joined:
        return
    from xgboost import collective

    Place.end()
    collective.finalize()
    if place.tracker is not None:
        place.tracker.wait_for(timeout=int(timeout_s))


def gathered(value: T) -> list[T]:
    """Every rank's value, by rank; all ranks call it."""
    from xgboost import collective

    ranks = collective.get_world_size()
    if ranks == 1:
        return [value]
    own = collective.get_rank()
    return [collective.broadcast(value if rank == own else None, rank) for rank in range(ranks)]  # type: ignore[misc]


def _listening() -> Iterator[int]:
    """The descriptors of this process on which connections are waited for."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as copy:
            if copy.family == socket.AF_INET and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield int(name)


def _without_place(text: str) -> str:
    """A message without the time and the line of XGBoost's own code before it."""
    return re.sub(r"^\[\d\d:\d\d:\d\d\] \S+:\d+: (Check failed: )?", "", text)


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """XGBoost's errors without places in its own code. Where it fails because another worker is gone, it says
    so: whoever is gone is the cause, not this one."""
    from xgboost.core import XGBoostError

    try:
        yield
    except XGBoostError as error:
        text = _without_place(str(error).partition("Stack trace:")[0].strip())
        if not _LOST_PEER.search(text):
            raise XGBoostError(text).with_traceback(error.__traceback__) from None
        details = "; ".join(re.findall(r"^- \[[^]]*\]: (.*)$", text, re.MULTILINE))
        raise ConnectionError(
            "XGBoost: connection closed by peer. Another worker failed or was lost while this one waited for it "
            f"({details})."
        ) from None
