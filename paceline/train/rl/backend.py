"""RLBackend: what a worker that trains with RLlib finds when it starts."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from paceline.air.temporary import SHORT_PREFIX, temporary_directory
from paceline.engine.base import ClusterAccess
from paceline.engine.places import THREADS_VARIABLES
from paceline.run.backend import Backend, BackendConfig, WorkerState
from paceline.storage.files import make_private_dirs

if TYPE_CHECKING:
    from paceline.engine.base import WorkerGroup

SCRATCH = ".rllib"
"""In the trial's directory."""


class RLBackend(Backend):
    """There is one worker, so nothing is to be connected. The driver removes what Ray and RLlib write there."""

    preload: ClassVar[tuple[str, ...]] = (
        "paceline.train.rl.rllib",
        "paceline.train.rl.loop",
        # Most of what RLlib imports later: the algorithm's own package, and what fixing a seed loads.
        "ray.rllib.algorithms.ppo",
        "torch._inductor",
    )
    thread_setters: ClassVar[tuple[str, ...]] = ("torch:set_num_threads",)

    def __init__(self) -> None:
        self._held = ExitStack()

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        access, is_here = worker_group.cluster(), worker_group.places[0].node.is_drivers
        sockets = self._held.enter_context(socket_directory()) if access is None and is_here else None
        scratch = self._scratch(worker_group) if is_here else None
        worker_group.execute(prepare, sockets, scratch, *(() if access is None else (access.address, access.room)))

    def _scratch(self, worker_group: WorkerGroup) -> str:
        scratch = Path(worker_group.placement.workers[0].log_path).parent.with_name(SCRATCH)
        shutil.rmtree(scratch, ignore_errors=True)  # of a driver that was killed
        make_private_dirs(scratch)
        self._held.callback(shutil.rmtree, scratch, ignore_errors=True)
        return str(scratch)

    def on_end(self) -> None:
        self._held.close()


@dataclass
class RLConfig(BackendConfig):
    """Has no settings."""

    @property
    def backend_cls(self) -> type[Backend]:
        return RLBackend


# -- a Ray that belongs to one worker: it starts for a run and ends with it ------------------------
# RLlib needs Ray for its env runners, even where there are none. Nothing of it is shared: a Ray that happens to run on
# the machine is left alone, this one listens on the loopback address only, and its token is in nobody's home directory.
# All its processes inherit the marks of the run, so the local engine ends them whatever happens to the driver.


_LONGEST_SOCKET_PATH = 107
_WHAT_IS_ADDED = 103
"""Bytes for the name of a temporary directory, and for what Ray adds to it for its sockets."""
_BELOW = "r"
"""Ray opens its directory to everybody on the machine, so it is one inside of a private directory."""


@dataclass
class Places(WorkerState):
    """Where a worker keeps its files. The driver made the directories, and removes them however the worker ends."""

    sockets: str | None = None
    """Ray's own; a short path."""
    scratch: str | None = None
    """On the file system of the run."""
    cluster: ClusterAccess | None = None
    """The one to join, instead of a Ray of its own."""


def prepare(sockets: str | None, scratch: str | None, address: str = "", room: str = "") -> None:
    """Note where files belong, and the cluster. Called in the worker by the backend."""
    places = Places.here()
    places.sockets, places.scratch = sockets, scratch
    if scratch is None:  # Another machine: its directory there is temporary as a whole.
        places.scratch = os.path.abspath(SCRATCH)
        os.makedirs(places.scratch, exist_ok=True)
    places.cluster = ClusterAccess(address, room) if address else None


@contextmanager
def socket_directory() -> Iterator[str]:
    """A temporary directory for Ray, elsewhere than usual if the paths of its sockets would be too long there."""
    usual = tempfile.gettempdir()
    fits = len(os.fsencode(usual)) + _WHAT_IS_ADDED <= _LONGEST_SOCKET_PATH
    with temporary_directory(SHORT_PREFIX, usual if fits else "/tmp") as directory:
        yield str(directory)


@contextmanager
def started(cpus: int) -> Iterator[None]:
    """Start a Ray with so many CPUs, and end it afterwards; on a cluster, join that instead. Ray counts CPUs, but does
    not enforce them."""
    import ray

    from paceline.train.rl import rllib

    if ray.is_initialized():  # a worker in the process of a program that uses Ray itself
        yield
        return
    if (access := Places.here().cluster) is not None:
        from paceline.train.rl.cluster import joined

        with joined(access):
            yield
        return
    # It would say at every start how to turn off tokens.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    variables = {
        **rllib.WITHOUT_OTHER_FRAMEWORKS,
        "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE"),  # Ray changes it
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # what makes Ray listen on the loopback address, and use no other
        "RAY_COLOR_PREFIX": "0",
        # Unset, Ray gives each of its processes as many threads as it has CPUs, by default one.
        **dict.fromkeys(THREADS_VARIABLES),
    }
    sockets = Places.here().sockets
    with _environment(variables), _loopback_only():
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            configure_logging=False,
            _temp_dir=None if sockets is None else os.path.join(sockets, _BELOW),
        )
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Ray has read the variable for this process when it was imported."""
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """With these variables; None: without. They are as before afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    _forget_token()
    try:
        yield
    finally:
        _set(before)
        _forget_token()


def _forget_token() -> None:
    """Ray remembers the token of a process; the next Ray has another one."""
    from ray._raylet import AuthenticationTokenLoader

    AuthenticationTokenLoader.instance().reset_cache()


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
