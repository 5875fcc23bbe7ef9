"""What workers of both libraries have to say about a training, in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.train.trees.datasets import meant


def nothing_to_train(rounds: int) -> str:
    return (
        f"The checkpoint has {rounds} rounds, which is all that num_boost_round asks for: it counts those of the "
        "checkpoint too. Nothing was trained; the model is evaluated and kept."
    )


def stopped_before(rounds: int) -> str:
    return (
        f"The checkpoint has {rounds} rounds, and early stopping had ended its training. Nothing was trained; the "
        "model is evaluated and kept."
    )


def will_differ(reason: str) -> str:
    return f"The trees after the checkpoint will differ from those without a break: {reason}."


def unused_parameter(library: str, name: str, known: Sequence[str]) -> str:
    return f"params[{name!r}] has no effect: {library} does not use a parameter of that name here.{meant(name, known)}"
