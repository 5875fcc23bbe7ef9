"""The engine for one machine: groups of worker processes, forked by wardens that are kept warm."""

from __future__ import annotations

import itertools
import os
import resource
import sys
from collections.abc import Mapping, Sequence

from paceline.air.errors import ConfigError, EngineError
from paceline.air.resources import usable_cores
from paceline.engine.base import Placement, WorkerGroup
from paceline.engine.local.group import LocalGroup
from paceline.engine.local.warden_client import WardenClient
from paceline.engine.local.wardens import Wardens
from paceline.engine.places import Node, drivers_node, lay_out
from paceline.engine.reactor import ReactorEngine

IMPORT_TIME_PREFIXES = (b"OMP_", b"MKL_", b"TORCH", b"JAX_", b"LD_", b"PYTHON")
"""Variables that libraries read when they are imported: another value needs another warden."""
ROUNDING = 1e-6
FDS_PER_WORKER = 4
SPARE_FDS = 128


class LocalEngine(ReactorEngine):
    name = "local"
    group_class: type[LocalGroup] = LocalGroup

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

    def room(self, bundle: Mapping[str, float]) -> int | None:
        """Of what was declared, what groups of this engine do not hold. GPUs limit it even if they were not declared;
        more workers than cores are fine."""
        there_is = {"CPU": self._num_cpus, "GPU": self.resources()["GPU"]}
        running = [group for group in list(self.groups) if isinstance(group, LocalGroup) and not group.is_over]
        limits = []
        for name, amount in there_is.items():
            each = bundle.get(name, 0.0)
            if amount is not None and each:
                used = sum(group.placement.resources.get(name, 0.0) * group.world_size for group in running)
                limits.append(_how_many(each, amount - used, whole=name == "GPU"))
        return min(limits, default=None)

    def start_group(self, placement: Placement) -> WorkerGroup:
        return self.start_on(placement, [drivers_node(self.resources()["GPU"])] * placement.world_size)

    def start_on(self, placement: Placement, nodes: Sequence[Node]) -> WorkerGroup:
        """Start a group as if its ranks were on these nodes, which all stand for this machine."""
        self._check(placement)
        places = lay_out(placement, nodes, os.environ)
        with self.reactor.lock:  # Until the group listens to it, the warden could be taken for an idle one.
            # A new interpreter has no use for what the warden has imported.
            warden = self._warden(() if placement.fresh else placement.preload)
            group = self.group_class(next(self._numbers), placement, places, warden, self.reactor)
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


def _how_many(each: float, free: float, *, whole: bool) -> int:
    """`whole` says that a worker does not take parts of several units: two of 0.7 GPU do not fit on one and a half."""
    if whole and each < 1:
        return max(0, int(free + ROUNDING)) * int(1 / each + ROUNDING)
    return max(0, int(free / each + ROUNDING))


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
