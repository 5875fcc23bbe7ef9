"""What workers have to say about a training reaches the result, once, in the same words for every library."""

from __future__ import annotations

import re

import pytest

import paceline.train
from paceline.air import Checkpoint
from paceline.air.errors import ConfigError
from tests.train.trees.libraries import Library, binary, both_libraries, ranking


@both_libraries
def test_a_parameter_without_effect_is_told(library: Library) -> None:
    task = binary()
    params = {**library.params(task), "max_dept": 3, "colsample_bytree": 0.9}
    result = library.trainer(task, params=params, num_boost_round=3, workers=1).fit()
    (told,) = result.warnings
    assert re.search(r"params\['max_dept'\].*'max_depth'", told)


@both_libraries
def test_a_checkpoint_that_has_all_rounds(library: Library) -> None:
    task = binary()
    first = library.trainer(task, num_boost_round=4, engine="inline").fit()
    assert first.warnings == []
    again = library.trainer(task, num_boost_round=4, engine="inline", resume_from_checkpoint=first.checkpoint).fit()
    (told,) = again.warnings
    assert re.search("checkpoint.*4 rounds.*num_boost_round", told)
    assert library.rounds(again.checkpoint) == 4


@both_libraries
def test_the_model_of_a_checkpoint(library: Library) -> None:
    result = library.trainer(binary(), num_boost_round=2, engine="inline").fit()
    plain = Checkpoint.from_directory(result.checkpoint.path)
    assert type(library.trainer_class.get_model(plain)) is type(result.checkpoint.get_model())


@both_libraries
def test_a_ranking_needs_the_queries_of_every_dataset(library: Library) -> None:
    task = ranking()
    for workers in (1, 2):
        with pytest.raises(ConfigError, match=r"'valid'.*dmatrix_params="):
            library.trainer(task, workers=workers, dmatrix_params={"train": {"qid": task.query}})


@both_libraries
def test_names_that_there_were(library: Library) -> None:
    trainer = library.trainer(binary())
    assert trainer.as_trainable() is trainer
    assert isinstance(trainer, paceline.train.gbdt_trainer.GBDTTrainer)
