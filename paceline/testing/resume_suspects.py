"""What a loop did not restore, as far as an observer can see it. See resume_observer.py for what is noted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RANDOM_STATE = "random state"
Lines = Mapping[tuple[int, int], Sequence[Mapping[str, Any]]]
"""What was noted, by attempt and rank."""


@dataclass(frozen=True)
class Forgotten:
    """One thing that the loop did not restore."""

    what: str
    text: str


def forgotten(clean: Lines, resumed: Lines, start: int) -> list[Forgotten]:
    """What the last attempt of the `resumed` run, which started after step `start`, did not restore.

    Ranks forget the same things: the first rank that shows one is enough. A random generator explains a difference
    only if nothing else does: a DataLoader, for one, takes numbers from it whether or not they decide anything.
    """
    last = max(attempt for attempt, _ in resumed)
    found: list[Forgotten] = []
    for (attempt, rank), lines in sorted(resumed.items()):
        if attempt != last:
            continue
        known = {each.what for each in found}
        found += [each for each in _of_rank(clean.get((0, rank), ()), lines, start, rank) if each.what not in known]
    return [each for each in found if each.what != RANDOM_STATE] or found


def _of_rank(
    clean: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]], start: int, rank: int
) -> Iterator[Forgotten]:
    if not any(line["event"] == "asked for checkpoint" for line in lines):
        yield Forgotten("checkpoint", "its checkpoint: the loop never called get_checkpoint() and began anew.")
        return
    yield from _never_loaded(lines)
    before, after = _report(clean, start + 1), _report(lines, start + 1)
    if before is not None and after is None and before["shards"]:
        yield Forgotten(
            "shard position",
            f"that a shard continues by itself: after the resume, rank {rank} made no report. Do not skip rows again.",
        )
    if before is None or after is None:
        return
    for number, (then, now) in enumerate(zip(before["loader_epochs"], after["loader_epochs"], strict=False)):
        if then != now:
            yield Forgotten(
                "loader epoch",
                f"the epoch of prepared DataLoader number {number + 1}: after step {start + 1}, rank {rank} would "
                f"continue with epoch {now} instead of {then}. A prepared loader continues by itself after a resume: "
                "prepare loaders in the same order, make the same passes, and do not set another epoch.",
            )
    for name, position in before["shards"].items():
        then, now = _place(position), _place(after["shards"].get(name, {}))
        if then != now:
            yield Forgotten(
                "shard position",
                f"the position in the dataset {name!r}: at step {start + 1}, rank {rank} was at {now} instead of "
                f"{then}. A shard continues by itself after a resume: do not skip rows again, and do not leave an "
                "epoch early.",
            )
    for name, state in before["random"].items():
        if after["random"].get(name, state) != state and _is_used(clean, name):
            yield Forgotten(
                RANDOM_STATE,
                f"probably the random generator {name}: its state was different in the first step after the resume "
                f"(step {start + 1}), and nothing else was. Save it with the checkpoint and set it again.",
            )


def _never_loaded(lines: Sequence[Mapping[str, Any]]) -> Iterator[Forgotten]:
    loaded = {(line["kind"], line.get("number")) for line in lines if line["event"] == "loaded"}
    created = [line for line in lines if line["event"] == "created"]
    if created and ("module", None) not in loaded:
        yield Forgotten("model", "the model: load_state_dict() was not called on any torch.nn.Module.")
    for line in created:
        if (line["kind"], line["number"]) not in loaded:
            yield Forgotten(
                line["kind"],
                f"the {line['kind']}: {line['type']}, created at {line['at']}, was never given its state. Save "
                "state_dict() in the checkpoint, unless it is there already, and call load_state_dict() after "
                "creating it.",
            )


def _report(lines: Sequence[Mapping[str, Any]], step: int) -> Mapping[str, Any] | None:
    return next((line for line in lines if line["event"] == "report" and line["step"] == step), None)


def _is_used(lines: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether the uninterrupted run took numbers from it between reports."""
    return len({line["random"].get(name) for line in lines if line["event"] == "report"}) > 1


def _place(state: Mapping[str, Any]) -> str:
    """A position in words. How it came about (in how many legs) may differ: what was handed out counts."""
    if not state:
        return "no position"
    rank = state.get("rank", 0)
    handed_out = sum(yielded[rank] for _, yielded, *_ in state.get("legs", ()) if rank < len(yielded))
    return f"epoch {state.get('epoch')}, row {handed_out}"
