"""What the nodes of a cluster have, and whether a group of workers fits on them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.air.words import counted
from paceline.engine.base import Placement

Amounts = Mapping[str, float]

_NEXT_TO_NOTHING = {"memory": 1.0}
"""Of a worker that asks for nothing: Ray takes no empty bundle."""
_ENOUGH = 1e-6
_MOST_KINDS = 10
_MOST_BUNDLES = 200
_MOST_TRIES = 2000
_BYTES = ("memory", "object_store_memory")


@dataclass(frozen=True)
class ClusterNode:
    """A node as Ray describes it."""

    node_id: str
    address: str
    hostname: str
    resources: Amounts
    port: int = 0
    """Where Ray listens on it; 0 if that is not known."""

    @property
    def label(self) -> str:
        """Names the node in messages."""
        return f"{self.hostname} ({self.address})"


def alive_nodes(described: Iterable[Mapping[str, Any]]) -> dict[str, ClusterNode]:
    """Of what ray.nodes() gives, by id."""
    return {
        node["NodeID"]: ClusterNode(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["NodeManagerHostname"],
            dict(node["Resources"]),
            node.get("NodeManagerPort", 0),
        )
        for node in described
        if node["Alive"]
    }


def draining_nodes() -> dict[str, float | None]:
    """Nodes that Ray is about to take out of the cluster, with the time at which they will be gone, if it is known.

    There is no public call for it. Without the private one nobody is warned, and the loss of a node is noticed later.
    """
    try:
        from ray._private.state import state

        deadlines: Mapping[str, int] = state.get_draining_nodes()
    except Exception:  # Whatever another version of Ray raises here.
        return {}
    return {node_id: deadline_ms / 1000 or None for node_id, deadline_ms in deadlines.items()}


def worker_bundle(placement: Placement) -> dict[str, float]:
    """What is reserved for each worker."""
    bundle = {name: amount for name, amount in placement.resources.items() if amount}
    if placement.accelerator_type is not None:
        bundle[f"accelerator_type:{placement.accelerator_type}"] = 0.001  # How Ray says that a node has such GPUs.
    return bundle or dict(_NEXT_TO_NOTHING)


def bundles_of(placement: Placement) -> list[dict[str, float]]:
    """What is reserved for a group: a bundle for each rank, those beside them, then maybe one for the driver."""
    beside = [{name: amount for name, amount in bundle.items() if amount} for bundle in placement.beside]
    bundles = [
        *[worker_bundle(placement)] * placement.world_size,
        *(bundle or dict(_NEXT_TO_NOTHING) for bundle in beside),
    ]
    own = {name: amount for name, amount in placement.driver_resources.items() if amount}
    if not own:
        return bundles
    if placement.strategy == "STRICT_SPREAD":  # The driver shall not cost another node.
        return [_sum([bundles[0], own]), *bundles[1:]]
    return [*bundles, own]


def _sum(bundles: Iterable[Amounts]) -> dict[str, float]:
    total: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def how_often(bundle: Amounts, node: Amounts) -> int:
    """How many such bundles fit on a node."""
    return min(int(node.get(name, 0.0) / amount + _ENOUGH) for name, amount in bundle.items())


def fits(placement: Placement, nodes: Sequence[Amounts]) -> bool:
    """Whether nodes that have this much can take the group. Only a no is certain."""
    bundles = bundles_of(placement)
    each, count = worker_bundle(placement), placement.world_size
    if placement.strategy == "STRICT_PACK":
        return any(how_often(_sum(bundles), node) for node in nodes)
    if placement.strategy == "STRICT_SPREAD":
        return _fit_one_by_one(bundles, nodes)
    if placement.beside:
        return _fit_in_turn(bundles, nodes) or not _cannot_fit(bundles, nodes)
    capacities = [how_often(each, node) for node in nodes]
    if len(bundles) == count:
        return sum(capacities) >= count
    own = bundles[-1]
    for number, node in enumerate(nodes):
        if how_often(own, node):
            rest = {name: amount - own.get(name, 0.0) for name, amount in node.items()}
            if sum(capacities) - capacities[number] + how_often(each, rest) >= count:
                return True
    return False


def room_for(bundle: Amounts, free: Iterable[Amounts]) -> int:
    """How many such workers fit on nodes that have this much left."""
    wanted = {name: amount for name, amount in bundle.items() if amount} or _NEXT_TO_NOTHING
    return sum(how_often(wanted, node) for node in free)


def _fit_in_turn(bundles: Iterable[Amounts], nodes: Sequence[Amounts]) -> bool:
    """Whether bundles that differ fit if the largest ones are placed first."""
    left = [dict(node) for node in nodes]
    for bundle in sorted(bundles, key=lambda each: sum(each.values()), reverse=True):
        node = next((node for node in left if how_often(bundle, node)), None)
        if node is None:
            return False
        for name, amount in bundle.items():
            node[name] -= amount
    return True


def _fit_one_by_one(bundles: Sequence[Amounts], nodes: Sequence[Amounts]) -> bool:
    """Whether each bundle can have a node of its own.

    It can if any kinds of bundles together have at least as many nodes that would do for one of them (Hall's theorem).
    """
    kinds = _kinds(bundles)
    able = [{number for number, node in enumerate(nodes) if how_often(bundle, node)} for bundle, _ in kinds]
    largest = len(kinds) if len(kinds) <= _MOST_KINDS else 1
    chosen = [some for size in range(1, largest + 1) for some in itertools.combinations(range(len(kinds)), size)]
    return len(bundles) <= len(nodes) and all(
        len(set().union(*(able[kind] for kind in some))) >= sum(kinds[kind][1] for kind in some) for some in chosen
    )


def _kinds(bundles: Iterable[Amounts]) -> list[tuple[Amounts, int]]:
    """The bundles that differ, and how often each occurs."""
    counts = Counter(tuple(sorted(bundle.items())) for bundle in bundles)
    return [(dict(bundle), count) for bundle, count in counts.items()]


def _cannot_fit(bundles: Sequence[Amounts], nodes: Sequence[Amounts]) -> bool:
    """True only if that is certain: trying all combinations could take too long."""
    total, have = _sum(bundles), _sum(nodes)
    if any(amount > have.get(name, 0.0) + _ENOUGH for name, amount in total.items()):
        return True
    in_order = [
        bundle
        for bundle, count in sorted(_kinds(bundles), key=lambda kind: _share(kind[0], have), reverse=True)
        for _ in range(count)
    ]
    tries = itertools.count()

    def can_place(number: int, left: list[dict[str, float]]) -> bool:
        if number == len(in_order) or next(tries) > _MOST_TRIES:
            return True
        tried: list[dict[str, float]] = []
        for node in left:
            if node in tried or not how_often(in_order[number], node):
                continue  # Nodes with the same amounts left are alike.
            tried.append(dict(node))
            for name, amount in in_order[number].items():
                node[name] -= amount
            if can_place(number + 1, left):
                return True
            node.update(tried[-1])
        return False

    if len(in_order) > _MOST_BUNDLES:
        return False
    return not can_place(0, [dict(node) for node in nodes])


def _share(bundle: Amounts, total: Amounts) -> float:
    """The largest part that it takes of anything."""
    return max(amount / total[name] for name, amount in bundle.items())


def in_words(amounts: Amounts) -> str:
    return ", ".join(f"{name} {_amount(name, amount)}" for name, amount in amounts.items())


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.3g} GiB" if name in _BYTES and amount >= 2**20 else f"{amount:g}"


def wanted_in_words(placement: Placement) -> str:
    """For example: 3 workers with CPU 2, GPU 1 each, on one node each (STRICT_SPREAD)"""
    workers = counted(placement.world_size, "worker")
    text = f"{workers} with {in_words(worker_bundle(placement))}{' each' if placement.world_size > 1 else ''}"
    kinds = _kinds({name: amount for name, amount in bundle.items() if amount} for bundle in placement.beside)
    if beside := [f"{f'{count} times ' if count > 1 else ''}{in_words(it)}" for it, count in kinds if it]:
        text += f", beside {'it' if placement.world_size == 1 else 'them'} {' and '.join(beside)}"
    if own := {name: amount for name, amount in placement.driver_resources.items() if amount}:
        text += f", and {in_words(own)} for the trainer"
    where = {"STRICT_PACK": ", all on one node", "STRICT_SPREAD": ", each on another node"}
    return text + where.get(placement.strategy, "")


def has_in_words(placement: Placement, nodes: Iterable[ClusterNode], have: Mapping[str, Amounts] | None = None) -> str:
    """What each node has of what is wanted; or, with `have`, what is left of it, by the node's id."""
    others = (*placement.beside, placement.driver_resources)
    names = list(
        dict.fromkeys([*worker_bundle(placement), *(name for each in others for name, it in each.items() if it)])
    )
    lines = []
    for node in nodes:
        amounts = node.resources if have is None else have.get(node.node_id, {})
        lines.append(f"  {node.label}: {in_words({name: amounts.get(name, 0.0) for name in names})}")
    return "\n".join(lines) or "  (no node)"


def infeasible_text(placement: Placement, nodes: Sequence[ClusterNode]) -> str:
    """Says what exists and what is missing."""
    missing = _missing(placement, nodes)
    advice = "Ask for less in ScalingConfig, or add nodes to the cluster."
    if not missing:
        advice = f"{_capacity_in_words(placement, nodes)} Ask for fewer workers, or add nodes to the cluster."
    return (
        f"the Ray cluster can never hold {wanted_in_words(placement)}. Its nodes have:\n"
        f"{has_in_words(placement, nodes)}\n{missing}{advice}"
    )


def _capacity_in_words(placement: Placement, nodes: Sequence[ClusterNode]) -> str:
    """For example: Such workers fit on its nodes: 2 on head (10.0.0.1), 0 on big (10.0.0.2); 2 in all."""
    capacities = [how_often(worker_bundle(placement), node.resources) for node in nodes]
    if placement.strategy in ("STRICT_PACK", "STRICT_SPREAD"):
        return f"Without the strategy {placement.strategy} there is room for {sum(capacities)} workers."
    each = ", ".join(f"{capacity} on {node.label}" for capacity, node in zip(capacities, nodes, strict=True))
    alone = " if there is nothing else" if placement.beside or any(placement.driver_resources.values()) else ""
    return f"Of these workers its nodes can hold{alone}: {each}; {sum(capacities)} in all."


def _missing(placement: Placement, nodes: Sequence[ClusterNode]) -> str:
    """Of what no node has enough for one worker, say, or all of them together not enough."""
    each: dict[str, float] = {}
    for bundle in (it for it in bundles_of(placement) if it != _NEXT_TO_NOTHING):
        each.update({name: max(amount, each.get(name, 0.0)) for name, amount in bundle.items()})
    most = {name: max((node.resources.get(name, 0.0) for node in nodes), default=0.0) for name in each}
    lacking = {name: amount for name, amount in each.items() if most[name] + _ENOUGH < amount}
    if lacking:
        return f"No node has {in_words(lacking)}. "
    total = _sum(node.resources for node in nodes)
    short = {
        name: amount - total.get(name, 0.0)
        for name, amount in _sum(bundles_of(placement)).items()
        if amount > total.get(name, 0.0) + _ENOUGH
    }
    return f"Missing in all: {in_words(short)}. " if short else ""
