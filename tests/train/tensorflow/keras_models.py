"""Small models of both Keras libraries."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
BOTH = pytest.mark.parametrize("name", ["keras", "tf_keras"])


def build(name: str) -> Any:
    """A small model of Keras 3 ("keras") or of tf_keras."""
    keras = importlib.import_module(name)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="mse", run_eagerly=True)
    return model


def with_lambda(name: str) -> Any:
    keras = importlib.import_module(name)
    return keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2)])


def assert_same(model: Any, other: Any) -> None:
    assert type(model) is type(other)
    np.testing.assert_allclose(model(ROWS), other(ROWS))
