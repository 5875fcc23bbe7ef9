"""What train functions of the tests have in common; workers import this module."""

from __future__ import annotations

from typing import Any

import numpy as np

FEATURES = 4
WEIGHTS = np.array([1.0, -2.0, 3.0, -4.0], np.float32)


def mesh_of_all() -> Any:
    import jax

    return jax.sharding.Mesh(np.array(jax.devices()), ("data",))


def over_rows(mesh: Any) -> Any:
    import jax

    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))


def everywhere(mesh: Any) -> Any:
    import jax

    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def sum_over_ranks(number: float) -> float:
    import jax

    mesh = mesh_of_all()
    own = np.full(jax.local_device_count(), number / jax.local_device_count(), np.float32)
    numbers = jax.make_array_from_process_local_data(over_rows(mesh), own)
    return float(jax.jit(lambda values: values.sum(), out_shardings=everywhere(mesh))(numbers))


def rows(count: int) -> Any:
    """Rows of a line to learn, the same in every process."""
    features = np.random.default_rng(0).normal(size=(count, FEATURES)).astype(np.float32)
    return [{"x": row, "y": float(row @ WEIGHTS)} for row in features]
