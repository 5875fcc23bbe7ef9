"""Searchers and schedulers written down and made again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline import tune
from paceline.air.errors import RestoreError
from paceline.tune.experiment.setup import described, rebuilt
from paceline.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)
from paceline.tune.search import BasicVariantGenerator, ConcurrencyLimiter, OptunaSearch, Repeater, Searcher


def through_json(description: Any) -> Any:
    return json.loads(json.dumps(description))


@pytest.mark.parametrize(
    "scheduler",
    [
        FIFOScheduler(),
        ASHAScheduler("training_iteration", max_t=7, reduction_factor=3),
        HyperBandScheduler(max_t=9),
        PopulationBasedTraining(perturbation_interval=2, hyperparam_mutations={"a": tune.uniform(0, 1), "b": [1, 2]}),
    ],
    ids=lambda scheduler: type(scheduler).__name__,
)
def test_a_scheduler_is_made_again_with_its_arguments(scheduler: TrialScheduler) -> None:
    again = rebuilt(TrialScheduler, through_json(described(scheduler)), "scheduler")
    assert type(again) is type(scheduler)
    assert described(again) == described(scheduler)


def test_a_searcher_within_another_is_made_again() -> None:
    searcher = ConcurrencyLimiter(Repeater(OptunaSearch(seed=3), repeat=2), max_concurrent=4, batch=True)
    again = rebuilt(Searcher, through_json(described(searcher)), "search_alg")
    assert isinstance(again, ConcurrencyLimiter)
    assert (again.max_concurrent, again.batch) == (4, True)
    assert isinstance(again.searcher, Repeater)
    assert isinstance(again.searcher.searcher, OptunaSearch)


class OwnScheduler(FIFOScheduler):
    """Of the user."""


@pytest.mark.parametrize(
    "plugin",
    [
        OwnScheduler(),
        PopulationBasedTraining(hyperparam_mutations={"a": lambda: 1}),
        BasicVariantGenerator(random_state=__import__("random").Random(3)),
    ],
    ids=["own class", "function among the arguments", "object among the arguments"],
)
def test_what_holds_code_has_no_plain_form(plugin: Any) -> None:
    assert described(plugin) is None
    with pytest.raises(RestoreError, match=r"TuneConfig\(scheduler="):
        rebuilt(TrialScheduler, None, "scheduler")


def test_a_class_of_another_name_is_never_imported() -> None:
    with pytest.raises(RestoreError, match=r"scheduler.*'os\.system'"):
        rebuilt(TrialScheduler, {"class": "os.system", "arguments": {}}, "scheduler")
