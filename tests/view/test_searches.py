"""What a search has found out, compared with plain loops."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from paceline.run.records import Reached
from paceline.tune.experiment.summary import ExperimentSummary, TrialSummary
from paceline.view.importance_process import Question, Reply, answer
from paceline.view.page.importances import ImportanceStore
from paceline.view.searches import Parameter, best_so_far, space_of, unbeaten


def trial(number: int, metrics: dict[str, Any], ended: float | None = 1.0, **params: Any) -> TrialSummary:
    return TrialSummary(
        path=f"/nowhere/{number}",
        name="search",
        trial_id=f"a_{number:05d}",
        trainer="train",
        status="finished",
        alive=False,
        num_workers=1,
        started=0.0,
        ended=ended,
        reached=Reached(metrics=metrics),
        number=number,
        params=params,
    )


def search(trials: list[TrialSummary], metric: Any = "score", mode: Any = "max") -> ExperimentSummary:
    return ExperimentSummary(
        path="/nowhere",
        name="search",
        id="abcdef",
        trainable="train",
        metric=metric,
        mode=mode,
        num_samples=len(trials),
        status="finished",
        alive=False,
        started=0.0,
        ended=1.0,
        trials=trials,
    )


def test_the_best_so_far() -> None:
    values = [(3.0, 0.5), (1.0, 0.1), (2.0, 0.4), (4.0, 0.3), (5.0, float("nan")), (6.0, 0.9), (None, 5.0)]
    trials = [trial(number, {"score": value}, ended) for number, (ended, value) in enumerate(values)]
    assert [(moment, value) for moment, value, _ in best_so_far(search(trials))] == [
        (1.0, 0.1), (2.0, 0.4), (3.0, 0.5), (6.0, 0.9)
    ]  # fmt: skip
    assert [value for _, value, _ in best_so_far(search(trials, mode="min"))] == [0.1]
    assert best_so_far(search(trials, metric=None, mode=None)) == []
    assert best_so_far(search([trial(0, {})])) == []


def test_numbers_that_are_too_large_for_a_float_are_passed_over() -> None:
    found = search([trial(0, {"score": 1.0}), trial(1, {"score": 10**400}), trial(2, {"score": True})])
    assert found.best is not None
    assert found.best.number == 0
    assert [value for _, value, _ in best_so_far(found)] == [1.0]


@pytest.mark.parametrize("seed", range(20))
def test_what_nothing_beats(seed: int) -> None:
    dice = random.Random(seed)
    names, modes = ["a", "b", "c"][: dice.choice([2, 3])], [dice.choice(["min", "max"]) for _ in range(3)]
    values = [{name: dice.choice([dice.random(), dice.randint(0, 3)]) for name in names} for _ in range(60)]
    found = unbeaten(search([trial(n, each) for n, each in enumerate(values)], names, modes[: len(names)]))

    def beats(one: dict[str, float], other: dict[str, float]) -> bool:
        signs = [1 if mode == "max" else -1 for mode in modes]
        pairs = [(sign * one[name], sign * other[name]) for name, sign in zip(names, signs, strict=False)]
        return all(x >= y for x, y in pairs) and any(x > y for x, y in pairs)

    expected = [n for n, each in enumerate(values) if not any(beats(other, each) for other in values)]
    assert [each.number for each in found] == expected


def test_one_metric_has_no_front() -> None:
    assert unbeaten(search([trial(0, {"score": 1.0})])) == []
    assert unbeaten(search([trial(0, {"a": 1.0}), trial(1, {"b": 1.0})], ["a", "b"], ["min", "max"])) == []


def test_a_space_is_guessed_where_none_was_stored() -> None:
    chosen = [{"lr": 10.0**-n, "layers": n, "name": "a" if n % 2 else "b", "flag": True} for n in range(1, 7)]
    space = space_of(search([trial(n, {}, 1.0, **params) for n, params in enumerate(chosen)]))
    assert space["lr"] == Parameter("float", True, 1e-6, 0.1)
    assert space["layers"] == Parameter("int", False, 1, 6)
    assert space["name"] == Parameter("choice", values=["a", "b"])
    assert space["flag"] == Parameter("choice", values=[True])


class TestImportances:
    def test_the_parameter_that_matters(self) -> None:
        dice = random.Random(0)
        params = [{"x": dice.random(), "y": dice.random()} for _ in range(40)]
        question = Question("max", 100, params, [each["x"] for each in params])
        asked = subprocess.run(
            [sys.executable, "-m", "paceline.view.importance_process"],
            input=msgspec.json.encode(question),
            capture_output=True,
            check=True,
        )
        reply = msgspec.json.decode(asked.stdout, type=Reply)
        assert reply.importances is not None
        assert list(reply.importances) == ["x", "y"]
        assert reply.importances["x"] > 0.8

    def test_trials_that_do_not_differ(self) -> None:
        reply = answer(Question("max", 100, [{"x": 1.0}, {"x": 2.0}], [1.0, 1.0]))
        assert reply.importances is None
        assert "differ" in reply.why

    def test_a_search_without_a_metric(self) -> None:
        assert "metric" in ImportanceStore().get("id", search([], metric=None, mode=None)).why
        assert "metric" in ImportanceStore().get("id", search([], metric=["a", "b"], mode=["min", "max"])).why

    def test_a_server_that_has_ended(self) -> None:
        store = ImportanceStore()
        store.close()
        assert "ended" in store.get("id", search([trial(0, {"score": 1.0}, x=1)])).why
