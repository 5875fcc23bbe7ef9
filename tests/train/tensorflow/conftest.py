from __future__ import annotations

import warnings

import pytest


@pytest.fixture(scope="session", autouse=True)
def tensorflow_is_loaded() -> None:
    """Its import sets variables, and the libraries that it imports warn, which no single test shall be blamed for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras
        import tensorflow as tf
        import tf_keras  # noqa: F401

        assert keras.__version__.startswith("3.")
        tf.get_logger().setLevel("ERROR")
