"""How the user is told about ranks that make no progress: who is missing, where it is, and what the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from paceline.run.positions import Position

SAME_STEPS = (
    "A rank that waits for another one in a collective operation needs that one to make the same call: let every rank "
    "take the same number of steps"
)


@dataclass(frozen=True)
class Scene:
    """Where all ranks are at one time."""

    running: Sequence[int]
    returned: Sequence[int]
    last_index: Sequence[int]
    positions: Mapping[int, Position]
    stacks: Mapping[int, str]

    def never_arrived(self, suspects: Sequence[int]) -> list[int]:
        """Those that the others wait for: ranks that are in no collective operation, or in another one than most.

        `suspects` have reported less than others, or nobody is behind and all of them are silent.
        """
        elsewhere = [rank for rank in self.running if not self._waits_in(rank)]
        if elsewhere:
            return [rank for rank in suspects if rank in elsewhere] or elsewhere
        places = {rank: self._place(rank) for rank in suspects}
        counts = Counter(places.values()).most_common()
        if len(counts) > 1 and counts[0][1] > counts[1][1]:
            return [rank for rank in suspects if places[rank] != counts[0][0]]
        return list(suspects)

    def _waits_in(self, rank: int) -> str:
        """What a rank waits in. Functions that also compute count only if no rank is seen to wait."""
        position = self.positions.get(rank)
        if position is None:
            return ""
        is_sure = any(each.waits_in for each in self.positions.values())
        return position.waits_in if is_sure else position.may_wait_in

    def _place(self, rank: int) -> str:
        return f"{self._waits_in(rank)} {self.positions[rank].frame}"

    def told(self, missing: Sequence[int]) -> str:
        """What each rank does, those that are missing first."""
        others = [rank for rank in self.running if rank not in missing]
        parts = [*self._groups(missing), *self._groups(others)]
        parts += [f"{ranks_text([rank])} returned after report {self.last_index[rank]}" for rank in self.returned]
        text = "; ".join(parts)
        if len(missing) > 1 and all(map(self._waits_in, missing)) and len(set(map(self._place, missing))) > 1:
            return f"the ranks are in different collective operations: {text}"
        advises = self.returned and any(map(self._waits_in, self.running))
        return f"{text}. {SAME_STEPS}" if advises else text

    def _groups(self, ranks: Sequence[int]) -> list[str]:
        """Ranks that do the same are told of together."""
        groups: dict[str, list[int]] = {}
        for rank in ranks:
            position = self.positions.get(rank)
            does = "did not show its stack" if position is None else str(position)
            groups.setdefault(f"{does}, after report {self.last_index[rank]}", []).append(rank)
        return [f"{ranks_text(same)} {_in_number(does, same)}" for does, same in groups.items()]

    def returned_early(self) -> str:
        """All that run wait for a rank that has returned."""
        gone, waiting = self.returned[0], self.running[0]
        return returned_early(gone, self.last_index[gone], waiting, self.positions[waiting])

    def stacks_text(self, first: Sequence[int]) -> str:
        """Every rank's stack under its name, those of `first` before the others: they are what is looked for."""
        return stacks_text(self.stacks, first)


def returned_early(gone: int, reports: int, waiting: int, position: Position) -> str:
    """What is wrong when a rank waits for one that has returned."""
    where = f" at {position.frame}" if position.frame is not None else ""
    called = position.waits_in or position.may_wait_in
    after = f"after report {reports}" if reports else "before its first report"
    waited = f"waited in {called}{where}" if called else f"waited for it{where}"
    return f"rank {gone} returned {after} while rank {waiting} {waited}. {SAME_STEPS}"


def stacks_text(stacks: Mapping[int, str], first: Sequence[int]) -> str:
    order = [rank for rank in first if rank in stacks] + [rank for rank in sorted(stacks) if rank not in first]
    return "\n".join(f"-- rank {rank} --\n{stacks[rank]}" for rank in order)


def ranks_text(ranks: Collection[int]) -> str:
    """``rank 3``, or ``ranks 0, 2-63``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    shown = [f"{span[0]}-{span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in spans]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(shown)}"


def _in_number(does: str, ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return does
    verb, _, rest = does.partition(" ")
    return f"{ {'waits': 'wait', 'is': 'are'}.get(verb, verb) } {rest}"
