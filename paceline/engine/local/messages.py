"""What the driver and its warden say to each other; of an environment, how it differs from one that both know."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

CONTROL: Final = 1
"""The one tag on the control connection; the struct's own tag says what it is."""


class WardenSettings(msgspec.Struct, frozen=True):
    """What a warden is started with."""

    control_fd: int
    driver_fd: int | None
    """The driver's pidfd: a connection can be kept open by a forked child, this cannot."""
    lifeline_fd: int
    """A pipe that hangs up with the driver; watched by the kernel while the imports run."""
    preload: list[str]


class Surroundings(msgspec.Struct, frozen=True):
    """What a worker process finds around itself. Paths and variables are bytes: they need not be text."""

    changed_variables: list[tuple[bytes, bytes]]
    """Where its environment differs from the one that its warden was started with."""
    removed_variables: list[bytes]
    cwd: bytes
    log_path: bytes
    sys_path: list[bytes]
    argv: list[bytes]
    main_file: bytes | None
    """The user's script, if there is one."""
    umask: int


Environment = dict[bytes, bytes]


def with_variables(environment: Environment, variables: Mapping[str, str]) -> Environment:
    """The environment with more variables in it."""
    return {**environment, **{os.fsencode(name): os.fsencode(value) for name, value in variables.items()}}


def difference(before: Environment, after: Environment) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """What to set and what to remove to get from one to the other."""
    changed = [item for item in after.items() if before.get(item[0]) != item[1]]
    return changed, [name for name in before if name not in after]


def change_environment(changed: Iterable[tuple[bytes, bytes]], removed: Iterable[bytes]) -> None:
    """Change the environment of this process."""
    for name in removed:
        os.environb.pop(name, None)
    for name, value in changed:
        os.environb[name] = value


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Start one worker. Descriptors come along: its end of the channel, its crash file, a socket on which it is handed
    attachments if there is one, and if it has no log, where its output goes."""

    group: int
    run_id: str
    rank: int
    world_size: int
    fresh: bool
    threads: int | None
    """For libraries that the worker or its children load themselves."""
    pool_threads: int | None
    """For libraries that are loaded already."""
    thread_setters: tuple[str, ...]
    pulse_s: float | None
    surroundings: Surroundings
    is_handed_attachments: bool = False


class KillGroup(msgspec.Struct, frozen=True, tag=True):
    """Kill the workers of a group and everything they started."""

    group: int


class Quit(msgspec.Struct, frozen=True, tag=True):
    """Kill everything and end."""


ToWarden = Spawn | KillGroup | Quit


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The preload imports are done, or one of them failed."""

    error: str | None = None


class Spawned(msgspec.Struct, frozen=True, tag=True):
    """A worker was forked. To a process of the same machine, its pidfd comes along where there are any."""

    group: int
    rank: int
    pid: int


class SpawnFailed(msgspec.Struct, frozen=True, tag=True):
    group: int
    rank: int
    error: str


class Exited(msgspec.Struct, frozen=True, tag=True):
    """A worker's process ended; `status` as wait() gives it, `max_rss` in bytes."""

    group: int
    rank: int
    status: int
    max_rss: int
    time_ns: int
    """Taken when it was reaped: failures are put in order by such moments."""


class GroupGone(msgspec.Struct, frozen=True, tag=True):
    """Nothing of the group is left on this machine."""

    group: int


FromWarden = Loaded | Spawned | SpawnFailed | Exited | GroupGone

encode = msgspec.msgpack.Encoder().encode
decode_to_warden = msgspec.msgpack.Decoder(ToWarden).decode
decode_from_warden = msgspec.msgpack.Decoder(FromWarden).decode
decode_settings = msgspec.msgpack.Decoder(WardenSettings).decode
decode_spawn = msgspec.msgpack.Decoder(Spawn).decode
