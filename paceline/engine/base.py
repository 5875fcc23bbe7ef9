"""The contract between a run and the place where its workers live.

An engine starts gangs of workers, carries messages, and says what happened to them. It
knows nothing about training: payloads and messages are opaque bytes to it.

A message is bytes, and may have attachments (`paceline.air.attachment`): content of any size that the engine brings
over as it can, without a copy where both sides share memory. The sender keeps its own; the receiver's is gone when
nobody refers to it any more.

Threads: one group is used by one thread at a time. Different groups of an engine may be started, used and shut down in
different threads at the same time, also while one of them is in `wait`; `wake` may be called from any thread, `close`
only when nothing else is called. With a Reactor, its `lock` protects what the threads share: callbacks run under it,
and whoever attaches or detaches workers from outside of a callback takes it.
Ownership: whoever called `start_group` calls `shutdown` on that group, whatever happened.

Inside a worker a *task* runs: a callable that gets the worker's end of the channel and
one bytes argument of its own. It talks through `channel.send` / `channel.receive`; when
it returns the group says TaskEnded, when it raises TaskFailed, and when the process
goes away before either, WorkerDied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from paceline.air import session
from paceline.air.attachment import Attachment
from paceline.air.errors import WorkerFailure
from paceline.engine.places import WorkerPlace
from paceline.engine.usage import Usage


class WorkerChannel(Protocol):
    """A worker's end of the line to the driver."""

    rank: int
    world_size: int

    def send(self, body: bytes, attachments: Sequence[Attachment] = ()) -> None:
        """Send one message. Blocks while the driver is behind. Thread-safe."""

    def receive(self, timeout: float | None = None) -> bytes | None:
        """The next message from the driver; None once `timeout` seconds have passed (0: do
        not wait; None: wait). Raises ConnectionError when the driver is gone."""

    def take_attachments(self) -> tuple[Attachment, ...]:
        """Those of the message received last."""


Task = Callable[[WorkerChannel, bytes], None]


@dataclass(frozen=True)
class WorkerRequest:
    """One worker of a group: what it shall find around itself. An engine honours all of it."""

    rank: int
    cwd: str
    """Where it runs; the engine makes the directory. On another filesystem: any whose last part is the same."""
    log_path: str
    """A file of the driver, to which the engine appends what the worker writes to its standard output and error. It may
    be truncated at any time. All of a worker's output is there once its group is shut down. Empty: its output
    goes where the driver's own goes."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of this worker on top of the environment that workers have anyway."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The same, but only where that environment does not have them."""


class Reservation:
    """Room for one group, kept until it is released. Where nothing but a count limits groups, it stands for nothing."""

    @property
    def is_lost(self) -> bool:
        """A machine that it was on is gone: release it, and reserve anew."""
        return False

    def release(self) -> None:
        """Others may have the room, also while workers in it are still ending. May be called again."""


@dataclass(frozen=True)
class Placement:
    """A group of workers to be started together, all or nothing: what is wanted. Where they run, the engine decides.

    `lay_out` and `variables` (`paceline.engine.places`) honour resources, devices, share_gpus and hide_other_gpus.
    """

    run_id: str
    """Set as `protocol.RUN_ID_VARIABLE` in the environment of workers, for whoever looks for processes of a run."""
    workers: tuple[WorkerRequest, ...]
    """By rank."""
    directory: str = ""
    """A directory of the driver's. The group says whether its workers see what is in there (`shares_directory`), and
    those that do run in the `cwd` itself if that is below."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """What each worker gets, such as ``{"CPU": 2, "GPU": 1}``."""
    devices: tuple[str, ...] | None = None
    """The names of the GPUs that the group may use, of `Engine.gpu_names`; None: all of them. An engine on several
    machines may take others, as many."""
    share_gpus: bool = False
    """Every worker of a machine sees the GPUs of all of them."""
    hide_other_gpus: bool = False
    """Workers that were given no GPUs see none."""
    beside: tuple[Mapping[str, float], ...] = ()
    """Room to keep on the cluster beside the workers, for what they start there themselves (`WorkerGroup.cluster`).
    Engines without `Capabilities.chooses_nodes` ignore it."""
    reservation: Reservation | None = None
    """Room for this group, by `Engine.reserve`; whoever reserved it releases it. If it is lost, or too small,
    `start_group` releases it itself and takes what other room there is. None: it finds room, and waits for it."""
    preload: tuple[str, ...] = ()
    """Modules to have imported before a worker is forked. An engine that never forks may ignore it."""
    fresh: bool = False
    """Start new interpreters: for frameworks that cannot be forked after import. An engine that never forks may ignore
    it."""
    threads: int | None = None
    """Threads per worker for numeric libraries; None leaves them alone, FAIR_SHARE lets the engine choose. `lay_out`
    makes `place.threads` of it: a worker's THREADS_VARIABLES are set to that, unless the environment has them."""
    thread_setters: tuple[str, ...] = ()
    """Functions of preloaded modules ("module:function") that each worker calls with its number of threads.
    They are for libraries loaded before the variables were set: new interpreters may ignore them."""
    start_timeout_s: float = 60.0
    """How long `start_group` may take; the engine watches. ChannelGroup also limits the loading of the task by it."""
    resource_timeout_s: float | None = None
    """How long `start_group` may wait for room before that, until it raises NoRoomError; None: as long as it takes."""
    heartbeat_timeout_s: float | None = 30.0
    """How long a worker may give no sign of life, until it is WorkerDied of kind "unresponsive"; None switches that
    watch off. An engine that cannot watch says so in its documentation."""
    strategy: str = "PACK"
    """How workers are spread over nodes: PACK on few and SPREAD on many, as far as there is room; STRICT_PACK on one
    and STRICT_SPREAD on one each, or not at all. Engines without `Capabilities.chooses_nodes` ignore this and the next
    two."""
    accelerator_type: str | None = None
    """The kind of GPU that nodes must have, such as ``"A100"``; None: any, or none."""
    driver_resources: Mapping[str, float] = field(default_factory=dict)
    """Room to keep for the driver while the group runs, beside that of the workers."""
    notify: Callable[[str], None] | None = field(default=None, compare=False)
    """Takes a text for the user while `start_group` waits for room; called in its thread."""
    is_unwanted: Callable[[], bool] | None = field(default=None, compare=False)
    """Whether the run is to end anyway. `start_group` asks while it waits for room, and raises StartCancelledError."""

    @classmethod
    def sketch(cls, world_size: int, resources: Mapping[str, float], **settings: Any) -> Placement:
        """One that says nothing about the workers but what room they need: for `Engine.reserve`."""
        workers = tuple(WorkerRequest(rank, "", "") for rank in range(world_size))
        return cls("", workers, resources=resources, **settings)

    @property
    def world_size(self) -> int:
        return len(self.workers)


class Message(msgspec.Struct, frozen=True):  # Not a dataclass: there are many of them, and these are made faster.
    """A message of the task on `rank`."""

    rank: int
    body: bytes
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True)
class TaskEnded:
    """The task on `rank` returned and everything it sent has been delivered."""

    rank: int


@dataclass(frozen=True)
class TaskFailed:
    """The task on `rank` raised. The time of the failure is by the driver's monotonic clock, wherever the worker is."""

    rank: int
    failure: WorkerFailure


@dataclass(frozen=True)
class WorkerDied:
    """The worker is gone, or gives no sign of life, before its task ended.

    What it had sent was delivered before, as far as it has arrived. From another machine, what was still on its way
    when the process ended can be lost; what the worker had an answer to cannot.
    """

    rank: int
    failure: WorkerFailure


@dataclass(frozen=True)
class NodeDrains:
    """The machine of this rank is about to be taken away; the worker still runs. Said once for each rank."""

    rank: int
    node: str
    """Names it for the user."""
    seconds_left: float | None = None
    """Until it is gone; None if that is not known."""


Event = Message | TaskEnded | TaskFailed | WorkerDied | NodeDrains


class _WithItsArguments:
    """A function, with the arguments of every rank; called without any in a worker."""

    def __init__(self, fn: Callable[..., Any], arguments: Sequence[Sequence[Any]]) -> None:
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self._fn = fn
        self._arguments = [tuple(of_rank) for of_rank in arguments]

    def __call__(self) -> Any:
        return self._fn(*self._arguments[session.get_world_rank()])


@dataclass(frozen=True)
class ClusterAccess:
    """For libraries that start processes on a cluster by themselves: where it is, and the room that was kept there."""

    address: str
    room: str
    """The cluster's own name for it: first the workers', by rank, then what `Placement.beside` asked for."""


class WorkerGroup(ABC):
    """The workers of one attempt."""

    placement: Placement
    places: tuple[WorkerPlace, ...]
    """Where each rank runs."""
    shares_directory: bool = False
    """Every worker sees the driver's files in `placement.directory` under the same paths, and may write there."""

    @property
    def world_size(self) -> int:
        return self.placement.world_size

    def __len__(self) -> int:
        return self.world_size

    @property
    def num_workers(self) -> int:
        """Another name of `world_size`, which backends written for Ray Train use."""
        return self.world_size

    @abstractmethod
    def execute(
        self,
        fn: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | None = None,
        timeout: float = 60.0,
    ) -> list[Any]:
        """Call `fn(*args)` on the given ranks (all of them by default) at the same time and
        return the values in rank order. Values come back as plain data, never by pickle.
        Only before `start` or after the task ended. Raises WorkerError where one raised."""

    def execute_each(
        self, fn: Callable[..., Any], arguments: Sequence[Sequence[Any]], *, timeout: float = 60.0
    ) -> list[Any]:
        """Call `fn(*arguments[rank])` on every rank at the same time; otherwise like `execute`."""
        if len(arguments) != self.world_size:
            raise ValueError(f"execute_each() needs arguments for {self.world_size} ranks, not for {len(arguments)}.")
        return self.execute(_WithItsArguments(fn, arguments), timeout=timeout)

    def execute_single(self, rank: int, fn: Callable[..., Any], *args: Any) -> Any:
        """Call `fn(*args)` on one rank."""
        return self.execute(fn, *args, ranks=[rank])[0]

    @abstractmethod
    def start(self, task: bytes, arguments: Sequence[bytes], attachments: Sequence[Attachment] = ()) -> None:
        """Start the pickled task on every rank with its own argument; does not wait. The attachments are those that
        the pickle refers to (`serialization.pickled`)."""

    @abstractmethod
    def poll(self, timeout: float | None = 0.0) -> list[Event]:
        """What happened since the last call, in order per rank; waits up to `timeout` seconds
        for the first event. After WorkerDied or TaskFailed a rank sends nothing more."""

    @abstractmethod
    def reply(self, rank: int, body: bytes, attachments: Sequence[Attachment] = ()) -> None:
        """Send a message to the task on `rank`; ignored if that worker is gone."""

    @abstractmethod
    def stacks(self, timeout: float = 1.0) -> dict[int, str]:
        """Every live rank's Python stacks as text, as far as they can be had in time."""

    @abstractmethod
    def processes(self) -> dict[int, int]:
        """Rank to process id on its node, of the workers that have a process of their own."""

    def usage(self, timeout: float = 1.0) -> dict[int, Usage]:
        """What every live rank uses of its machine, as far as it is known in time. Cheap enough to ask every few
        seconds. An engine that cannot tell returns nothing."""
        return {}

    def cluster(self) -> ClusterAccess | None:
        """How a worker joins the cluster that its room is on; None if there is no such thing."""
        return None

    def has_lost_node(self, rank: int) -> bool:
        """Whether the machine of that rank is gone, and not only what held its worker there.

        Asked after a failure of kind "engine", before shutdown(). The answer may take a few seconds.
        """
        return False

    def wall_offset(self, rank: int) -> float:
        """Seconds to add to that worker's wall clock to get the driver's, as far as is known."""
        return 0.0

    @abstractmethod
    def shutdown(self, grace: float = 0.0) -> list[str]:
        """End every worker and everything it started. Workers get `grace` seconds to end by
        themselves, then SIGKILL. Returns warnings (an exit that crashed or had to be
        killed). May be called again."""


@dataclass(frozen=True)
class Capabilities:
    """What code outside of an engine may rely on. An engine that says nothing promises nothing."""

    in_driver_process: bool = False
    """Workers are threads of the driver's own process: what is changed for them does not go away with them."""
    chooses_nodes: bool = False
    """It has several nodes, and honours `strategy`, `accelerator_type`, `driver_resources` and `beside` of a Placement,
    not `devices`: it chooses GPUs itself. `reserve` says whether there is room."""


class Engine(ABC):
    """A place where workers live."""

    name: str
    """For the user; nothing is decided by it."""
    capabilities: Capabilities = Capabilities()
    """Asked often: an engine that has to find out remembers it."""

    @property
    def lost(self) -> str:
        """Why nothing can be started here any more, so that the next run needs a new engine; empty while it can."""
        return ""

    def describe(self) -> str:
        """Where its workers run, for the user."""
        return f"the engine {self.name!r}"

    @abstractmethod
    def resources(self) -> dict[str, float]:
        """What there is: at least ``{"CPU": n, "GPU": m}``."""

    def gpu_names(self) -> list[str]:
        """One name for each GPU, to share them out among groups by `Placement.devices`."""
        return [str(number) for number in range(int(self.resources().get("GPU", 0.0)))]

    def warm(self, preload: Sequence[str], world_size: int | None = None) -> None:  # noqa: B027  (optional)
        """Begin loading what workers will need, without waiting for it. None: for more than one group, or not known."""

    def reserve(self, placement: Placement, on: Sequence[str] | None = None) -> Reservation | None:
        """Room for such a group; None: there is none now. It never waits for others.

        After None, call it again a few times a second: the engine keeps a place in the queue for a caller that does.
        `on` names the nodes of workers that are there already, one for each rank. Raises ConfigError for what can never
        be had.
        """
        return Reservation()

    def room(self, bundle: Mapping[str, float]) -> int | None:
        """How many workers that need this much each could start now, beside those that run; None: no limit is known.

        It never waits for room. Machines that are about to leave do not count.
        """
        return None

    def what_is_gone(self, placement: Placement) -> str:
        """The lost machines that such a group would need; empty if the remaining ones are enough."""
        return ""

    @abstractmethod
    def start_group(self, placement: Placement) -> WorkerGroup:
        """Start all workers or none; returns when all are ready.

        Raises, after having cleaned up: StartupTimeoutError if that takes longer than `start_timeout_s`; WorkerError
        with its WorkerFailure if a worker ended meanwhile (whether the run tries again depends on its kind: yes after
        a kill from outside, a lack of memory, "engine" or "node_lost"); ConfigError for what can never be placed here;
        EngineError for anything else, which is not tried again.
        """

    @abstractmethod
    def wait(self, groups: Sequence[WorkerGroup], timeout: float | None) -> list[WorkerGroup]:
        """Those of the groups that have events to poll; waits up to `timeout` for one."""

    def wake(self) -> None:  # noqa: B027  (optional)
        """Have another thread that is in `wait` return soon."""

    @abstractmethod
    def close(self) -> None:
        """Give back everything; groups that still run are killed."""
