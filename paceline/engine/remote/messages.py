"""What the driver and the agents of other machines say to each other."""

from __future__ import annotations

import platform
from typing import Final

import msgspec

from paceline.air.version import version
from paceline.engine.local.messages import Exited as ExitedHere
from paceline.engine.local.messages import GroupGone as GroupGone
from paceline.engine.local.messages import Quit as Quit
from paceline.engine.local.messages import Spawned as Spawned
from paceline.engine.local.messages import SpawnFailed as SpawnFailed
from paceline.engine.usage import Usage

CONTROL: Final = 1
"""The tag of messages on an agent's connection; the struct's own tag says what it is. Besides them there are only the
frames that bring attachments."""


class AgentSettings(msgspec.Struct, frozen=True):
    """What an agent is started with."""

    address: tuple[str, int]
    """Where the driver listens."""
    token: bytes
    """Shared by the driver and its agents; never sent over their connections."""
    number: int
    """Tells the agents of one driver apart."""
    silence_s: float
    """An agent without workers that has not heard from the driver for so long ends. While there are workers, twice
    their heartbeat_timeout_s decides."""
    node: str = ""
    """Of two agents of one driver with the same node, the later one ends the earlier one first. Empty: of none."""
    tls_variables: tuple[str, str, str] | None = None
    """Variables of the machine that name its certificate, key and authority. None: connections are not encrypted."""


class Warm(msgspec.Struct, frozen=True, tag=True):
    """Begin importing what workers will need."""

    preload: list[str]


class SpawnWorker(msgspec.Struct, frozen=True, tag=True):
    """Start one worker. It dials the driver itself."""

    group: int
    run_id: str
    rank: int
    world_size: int
    preload: list[str]
    fresh: bool
    cwd: str
    """A path of the driver's machine."""
    shares_files: bool
    """`cwd` is the driver's own directory; otherwise the worker gets a private folder with the same last part."""
    env: dict[str, str]
    defaults: dict[str, str]
    """Set where the environment of this machine does not have them."""
    sys_path: list[str]
    argv: list[str]
    main_file: str | None
    threads: int | None
    thread_setters: list[str]
    heartbeat_timeout_s: float | None
    umask: int


class KillGroup(msgspec.Struct, frozen=True, tag=True):
    """Kill the workers of a group and everything they started; answered by GroupGone."""

    group: int
    is_late: bool = False
    """It did not get ready in time: if the imports before the fork are not over, they are given up."""


class ShowStacks(msgspec.Struct, frozen=True, tag=True):
    """Answered by Stacks, within the time that the driver waits for it."""

    group: int
    ranks: list[int]
    number: int
    """Tells the questions of a group apart; the answer has the same."""
    wait_s: float
    """How long the ranks may take."""


class ShowUsage(msgspec.Struct, frozen=True, tag=True):
    """Answered by Usages."""

    group: int
    ranks: list[int]
    number: int
    """Tells the questions of a group apart; the answer has the same."""


class Lend(msgspec.Struct, frozen=True, tag=True):
    """Hand an attachment to a worker, which waits for it. Attachments come ahead, and are counted from 0."""

    number: int
    group: int
    rank: int


class Drop(msgspec.Struct, frozen=True, tag=True):
    """Nobody will be lent this attachment any more."""

    number: int


class LookFor(msgspec.Struct, frozen=True, tag=True):
    """Whether this machine sees a file of the driver's. Answered by Seen."""

    path: str


class Ping(msgspec.Struct, frozen=True, tag=True):
    """The driver is alive. Answered by Pulse."""


ToAgent = Warm | SpawnWorker | KillGroup | ShowStacks | ShowUsage | Lend | Drop | LookFor | Ping | Quit


class NodeFacts(msgspec.Struct, frozen=True, tag=True):
    """What an agent says first, about its machine."""

    hostname: str
    cores: int
    filesystem: str
    """Equal to that of another process if both see the same files and process ids."""
    pid: int
    python: str = ""
    paceline: str = ""
    """Versions; both sides must have the same."""


class Pulse(msgspec.Struct, frozen=True, tag=True):
    """The machine is alive."""

    clocks: bytes
    """`protocol.clocks()`"""


class LastWords(msgspec.Struct, frozen=True, tag=True):
    """An error that ends the agent."""

    error: str


class Seen(msgspec.Struct, frozen=True, tag=True):
    """What is in the file that the driver has asked for; nothing if it is not there."""

    path: str
    content: bytes


class Output(msgspec.Struct, frozen=True, tag=True):
    """What a worker wrote to its standard streams. All of it comes before GroupGone."""

    group: int
    rank: int
    data: bytes


class Exited(ExitedHere, frozen=True, tag=True):
    """What the warden says, and what else the machine knows; the time is by the machine's own clock."""

    crash: str
    memory_limit: int | None
    out_of_memory_kills: int


class WardenLost(msgspec.Struct, frozen=True, tag=True):
    """The process that watches over the workers of a group is gone, and they with it."""

    group: int
    diagnosis: str


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    """What a group wanted to have imported could not be."""

    group: int
    error: str


class Stacks(msgspec.Struct, frozen=True, tag=True):
    """Of the ranks that were asked for, and showed them in time."""

    group: int
    number: int
    texts: dict[int, str]


class Usages(msgspec.Struct, frozen=True, tag=True):
    """Of the ranks that were asked for, and have a process."""

    group: int
    number: int
    of_ranks: dict[int, Usage]


OfGroup = Spawned | SpawnFailed | Output | Exited | WardenLost | LoadFailed | Stacks | Usages | GroupGone
FromAgent = NodeFacts | Pulse | LastWords | Seen | OfGroup


def own_versions() -> tuple[str, str]:
    """Of Python and of paceline, in this process."""
    return platform.python_version(), version()


encode = msgspec.msgpack.Encoder().encode
decode_settings = msgspec.msgpack.Decoder(AgentSettings).decode
decode_to_agent = msgspec.msgpack.Decoder(ToAgent).decode
decode_from_agent = msgspec.msgpack.Decoder(FromAgent).decode
