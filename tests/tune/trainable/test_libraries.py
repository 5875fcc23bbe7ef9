"""Which libraries are loaded before trials are forked."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from paceline.run.attempt import modules_to_preload
from paceline.tune.trainable import Trainable
from paceline.tune.trainable.kinds import TrainableBackendConfig, libraries_of


def uses_a_global(config: dict[str, Any]) -> Any:
    return [np.mean(each) for each in config["rows"]]


def imports_inside(config: dict[str, Any]) -> Any:
    import pandas.api.types

    return pandas


def calls_another(config: dict[str, Any]) -> Any:
    return uses_a_global(config)


def uses_a_class(config: dict[str, Any]) -> Any:
    return LogisticRegression()


def uses_two_that_do_not_go_together(config: dict[str, Any]) -> Any:
    import torch
    import xgboost

    return torch, xgboost


def uses_nothing(config: dict[str, Any]) -> Any:
    return config


class UsesInAMethod(Trainable):
    def step(self) -> Any:
        return uses_a_global(self.config)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (uses_a_global, ("numpy",)),
        (imports_inside, ("pandas.api.types",)),
        (calls_another, ("numpy",)),
        (partial(calls_another), ("numpy",)),
        (uses_a_class, ("sklearn.linear_model._logistic",)),
        (uses_two_that_do_not_go_together, ("torch",)),
        (uses_nothing, ()),
        (UsesInAMethod, ("numpy",)),
        ({"rows": np.ones(3)}, ("numpy",)),
    ],
)
def test_what_a_trainable_refers_to_is_found(
    value: Any, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = [uses_a_global, imports_inside, calls_another, uses_a_class, uses_two_that_do_not_go_together]
    for mine in (*functions, uses_nothing, UsesInAMethod, UsesInAMethod.step):
        monkeypatch.setattr(mine, "__module__", "__main__")  # a script's functions travel, its imports do not
    assert [name for name in libraries_of(value) if not name.startswith("paceline.")] == list(found)


def test_a_function_of_an_imported_module_brings_what_that_module_imports() -> None:
    def calls_it(config: dict[str, Any]) -> Any:
        return uses_nothing(config)

    imported = {"numpy", "sklearn.linear_model._logistic", "paceline.run.attempt"}
    assert imported <= set(libraries_of(uses_nothing))
    assert imported <= set(libraries_of(calls_it))


def test_a_function_inside_another_travels_alone() -> None:
    def inside(config: dict[str, Any]) -> Any:
        return config

    assert [name for name in libraries_of(inside) if not name.startswith("paceline.")] == []


def test_it_is_loaded_beside_what_every_trial_needs() -> None:
    modules = modules_to_preload(TrainableBackendConfig(("numpy",)))
    assert {"numpy", "paceline.tune.trainable.session", "paceline.run.worker"} <= set(modules)
    assert "numpy" not in modules_to_preload(TrainableBackendConfig())


def test_what_torch_imports_only_with_the_first_optimizer_is_loaded_too() -> None:
    assert "torch._dynamo" in modules_to_preload(TrainableBackendConfig(("torch",)))
    assert "torch._dynamo" not in modules_to_preload(TrainableBackendConfig(("numpy",)))
