"""TreeTask: what a boosting loop has to do, as every worker is told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


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
