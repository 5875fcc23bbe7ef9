from __future__ import annotations

import warnings

import pytest


@pytest.fixture(scope="session", autouse=True)
def jax_is_loaded() -> None:
    """Its import sets variables, and so does its first use, which no single test shall be blamed for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jax

        jax.config.update("jax_platforms", "cpu")
