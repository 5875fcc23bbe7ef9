"""The engine for one machine: groups of worker processes, forked by wardens that are kept warm."""

from __future__ import annotations

import itertools
import os
import resource
import sys
from collections.abc import Sequence

from paceline.air.errors import ConfigError, EngineError
from paceline.air.resources import usable_cores
from paceline.engine.base import Placement, WorkerGroup
from paceline.engine.local.group import LocalGroup
from paceline.engine.local.warden_client import WardenClient
from paceline.engine.local.wardens import Wardens
from paceline.engine.places import drivers_node, lay_out
from paceline.engine.reactor import ReactorEngine

IMPORT_TIME_PREFIXES = (b"OMP_", b"MKL_", b"TORCH", b"LD_", b"PYTHON")
"""Variables that libraries read when they are imported: another value needs another warden."""
FDS_PER_WORKER = 4
SPARE_FDS = 128


class LocalEngine(ReactorEngine):
    name = "local"

    def __init__(self, num_cpus: float | None = None, num_gpus: float | None = None) -> None:
        super().__init__(num_cpus, num_gpus)
        self._wardens = Wardens(self.reactor)
        self._numbers = itertools.count(1)

    @property
    def wardens(self) -> tuple[WardenClient, ...]:
        """The wardens that are running, the one that was used last at the end."""
        with self.reactor.lock:
            return self._wardens.running()

    def warm(self, preload: Sequence[str], world_size: int | None = None) -> None:
        if os.getpid() == self._pid:
            self._warden(tuple(preload))
            self._end_surplus_wardens()

    def start_group(self, placement: Placement) -> WorkerGroup:
        self._check(placement)
        node = drivers_node(self.resources()["GPU"])
        places = lay_out(placement, [node] * placement.world_size, os.environ)
        with self.reactor.lock:  # Until the group listens to it, the warden could be taken for an idle one.
            # A new interpreter has no use for what the warden has imported.
            warden = self._warden(() if placement.fresh else placement.preload)
            group = LocalGroup(next(self._numbers), placement, places, warden, self.reactor)
        self.groups.add(group)
        self._end_surplus_wardens()
        group.launch()
        return group

    def _check(self, placement: Placement) -> None:
        self.check_usable(placement)
        limit = max(256, 64 * usable_cores())
        if placement.world_size > limit:
            raise ConfigError(
                f"num_workers={placement.world_size} is more than this machine can sensibly run: "
                f"at most {limit} with {usable_cores()} cores"
            )
        make_room_for_fds(placement.world_size * FDS_PER_WORKER)

    def _warden(self, preload: tuple[str, ...]) -> WardenClient:
        with self.reactor.lock:
            return self._wardens.get(preload, (import_time_variables(), sys.executable))

    def _end_surplus_wardens(self) -> None:
        with self.reactor.lock:
            surplus = self._wardens.take_surplus()
        for warden in surplus:
            warden.close()

    def release(self) -> None:
        for warden in self._wardens.take_all():
            warden.close()


def import_time_variables() -> tuple[tuple[bytes, bytes], ...]:
    return tuple(sorted(item for item in os.environb.items() if item[0].startswith(IMPORT_TIME_PREFIXES)))


def make_room_for_fds(needed: int) -> None:
    """Each worker costs the driver a few descriptors; the usual limit of 1,024 is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed + len(os.listdir("/dev/fd")) + SPARE_FDS
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise EngineError(f"so many workers need {wanted} open files; the limit is {hard}. Raise it with 'ulimit -n'.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
