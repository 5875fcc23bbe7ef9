"""TreeTask: what a boosting loop has to do, as every worker is told it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline.train.trees.datasets import meant


@dataclass(frozen=True)
class TreeTask:
    """The arguments of a tree trainer that its workers need."""

    KNOWN_AS: ClassVar[Mapping[str, str]] = {
        "params": "params",
        "matrix_params": "dmatrix_params",
        "train_kwargs": "keywords",
    }

    params: Mapping[str, Any]
    """Of the library, as the user gave them."""
    label_column: str
    num_boost_round: int
    """Rounds of the finished model, those of a checkpoint that it starts from included."""
    matrix_params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By dataset, what goes into its matrix beside the features: columns of weights, queries, ..."""
    train_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """For the library's train function."""
    checkpoint_frequency: int = 0
    """A checkpoint after every so many rounds; 0: none."""
    checkpoint_at_end: bool = True


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
