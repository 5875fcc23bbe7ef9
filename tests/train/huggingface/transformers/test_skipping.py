"""Where a dataset continues, by the steps that a transformers.Trainer has done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from transformers import TrainerControl, TrainerState

from paceline.air.errors import CheckpointError
from paceline.train.huggingface.transformers.datasets import Resumable
from paceline.train.huggingface.transformers.loaders import SkipTrained


class Batches:
    """Notes where it is sent."""

    batch_size = 4

    def __init__(self, *, knows_place: bool = True) -> None:
        self.begun = False
        self.place: tuple[int, int, int] | None = None
        self._knows_place = knows_place

    def begin_pass(self) -> None:
        self.begun = True

    def go_to(self, epoch: int, batches: int, per_epoch: int) -> bool:
        self.place = epoch, batches, per_epoch
        return self._knows_place


def begin(batches: Batches, steps: int, accumulation: int, per_epoch: int) -> None:
    arguments: Any = SimpleNamespace(gradient_accumulation_steps=accumulation, world_size=1)
    state, control = TrainerState(global_step=steps), TrainerControl()
    SkipTrained(cast(Resumable, batches)).on_train_begin(arguments, state, control, train_dataloader=range(per_epoch))


def test_a_new_training_begins_its_first_pass() -> None:
    batches = Batches()
    begin(batches, steps=0, accumulation=1, per_epoch=10)
    assert batches.begun
    assert batches.place is None


@pytest.mark.parametrize(
    ("steps", "accumulation", "place"),
    [(7, 1, (0, 7, 10)), (13, 1, (1, 3, 10)), (7, 2, (1, 4, 10)), (4, 4, (1, 4, 10)), (5, 2, (1, 0, 10))],
)
def test_a_step_takes_as_many_batches_as_gradients_are_accumulated(
    steps: int, accumulation: int, place: tuple[int, int, int]
) -> None:
    batches = Batches()
    begin(batches, steps, accumulation, per_epoch=10)
    assert batches.place == place


def test_a_step_that_was_another_place_in_the_data_is_rejected() -> None:
    with pytest.raises(CheckpointError, match=r"gradient_accumulation_steps=2.*step 7"):
        begin(Batches(knows_place=False), steps=7, accumulation=2, per_epoch=10)
