"""ElasticEngine: a small cluster on this machine, whose nodes a test adds and takes away while a run is under way.

Its workers are those of the local engine, so they are real processes. A node is a name and a number of workers that
have room there. All methods may be called from any thread::

    engine = ElasticEngine({"a": 1, "b": 2})
    trainer = TorchTrainer(..., scaling_config=ScalingConfig(num_workers=(1, 3)), run_config=RunConfig(engine=engine))
    engine.lose_node("b")    # kills its workers, as if the machine were gone
    engine.add_node("c", 4)
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from paceline.air.errors import ConfigError, NoRoomError, StartCancelledError, WorkerFailure
from paceline.air.words import counted
from paceline.engine.base import Placement, WorkerGroup
from paceline.engine.channel_group import GroupMember
from paceline.engine.local.engine import LocalEngine
from paceline.engine.local.group import LocalGroup
from paceline.engine.places import Node, drivers_node

LOOK_S = 0.01


class ElasticGroup(LocalGroup):
    """Workers on nodes that can be lost."""

    lost_nodes: frozenset[str] = frozenset()

    def has_lost_node(self, rank: int) -> bool:
        return self.places[rank].node.node_id in self.lost_nodes

    def fail_with(self, member: GroupMember, failure: WorkerFailure) -> None:
        if self.has_lost_node(member.rank):
            node = self.places[member.rank].node.node_id
            failure = replace(failure, kind="node_lost", message=f"the node {node} is gone", signal=None, hint="")
        super().fail_with(member, failure)

    def lose(self, node: str) -> None:
        """Kill the workers on a node."""
        self.lost_nodes |= {node}
        for rank, pid in self.processes().items():
            if self.places[rank].node.node_id == node:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class ElasticEngine(LocalEngine):
    """The local engine with nodes that come and go."""

    name = "elastic"
    group_class = ElasticGroup

    def __init__(self, nodes: Mapping[str, int] | int) -> None:
        """`nodes` says how many workers have room on each; a number stands for one node."""
        super().__init__()
        self._nodes = dict(nodes) if isinstance(nodes, Mapping) else {"node": nodes}
        self._draining: set[str] = set()
        self._changed = threading.Condition()

    # -- what a test does -------------------------------------------------------------------

    @property
    def nodes(self) -> dict[str, int]:
        """How many workers have room on each node, those that run there included."""
        with self._changed:
            return dict(self._nodes)

    @property
    def workers(self) -> int:
        """How many workers there are, those on lost nodes included until their group has ended."""
        return sum(group.world_size for group in self._running())

    def add_node(self, name: str, workers: int) -> None:
        """A new node, or another size of one that is there."""
        with self._changed:
            self._nodes[name] = workers
            self._draining.discard(name)
            self._changed.notify_all()

    def lose_node(self, name: str) -> None:
        """The node is gone, and its workers with it."""
        with self._changed:
            if name not in self._nodes:
                raise ConfigError(
                    f"ElasticEngine has no node {name!r} to lose. It has: {', '.join(self._nodes) or 'none'}."
                )
            del self._nodes[name]
            self._draining.discard(name)
        for group in self._running():
            group.lose(name)

    def drain_node(self, name: str, seconds_left: float | None = None) -> None:
        """The node takes no more workers, and its group is told that it will be gone."""
        with self._changed:
            self._draining.add(name)
        for group in self._running():
            group.note_drain(name, seconds_left)

    # -- what a run asks ----------------------------------------------------------------------

    def room(self, bundle: Mapping[str, float]) -> int:
        return len(self._free())

    def start_group(self, placement: Placement) -> WorkerGroup:
        limit = float("inf") if placement.resource_timeout_s is None else placement.resource_timeout_s
        deadline = time.monotonic() + limit
        while len(free := self._free()) < placement.world_size:
            if placement.is_unwanted is not None and placement.is_unwanted():
                raise StartCancelledError("the run is to end, and had no room yet")
            if time.monotonic() > deadline:
                raise NoRoomError(f"there is room for {len(free)} of {counted(placement.world_size, 'worker')}")
            with self._changed:
                self._changed.wait(LOOK_S)
        here = drivers_node(self.resources()["GPU"])
        nodes: list[Node] = [replace(here, node_id=name) for name in free[: placement.world_size]]
        return self.start_on(placement, nodes)

    def _running(self) -> list[ElasticGroup]:
        return [group for group in list(self.groups) if isinstance(group, ElasticGroup) and not group.is_over]

    def _free(self) -> list[str]:
        """The name of a node for each worker that has room."""
        used = Counter(place.node.node_id for group in self._running() for place in group.places)
        with self._changed:
            slots = {name: size - used[name] for name, size in self._nodes.items() if name not in self._draining}
        return [name for name, count in slots.items() for _ in range(count)]
