"""States as checkpoints: what comes back, on other numbers of processes, and what cannot be saved or read."""

from __future__ import annotations

import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline import train
from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.air.errors import CheckpointCorruptError, CheckpointError, ConfigError
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.train.jax import JaxCheckpoint, JaxConfig, JaxTrainer
from tests.train.jax.loops import everywhere, mesh_of_all, over_rows


class Moments(NamedTuple):
    first: Any
    second: Any


def a_state(scale: float = 1.0) -> dict[str, Any]:
    return {
        "params": {"kernel": scale * jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones(3, jnp.bfloat16)},
        "moments": Moments(jnp.full(3, scale), [jnp.zeros((1, 2)), jnp.int32(4)]),
        "key": jax.random.key(int(scale)),
        "host": np.arange(4) * int(scale),
        "step": int(7 * scale),
        "rate": 0.5,
        "flag": True,
        "name": "a state",
        "nothing": None,
        "empty": {},
    }


# -- one process -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["in memory", "directory", "bytes"])
def test_a_state_comes_back_as_the_target_has_it(form: str, tmp_path: Path) -> None:
    saved = a_state()
    checkpoint = JaxCheckpoint.from_state(saved)
    if form == "directory":
        checkpoint = JaxCheckpoint.from_directory(checkpoint.to_directory(tmp_path / "saved"))
    elif form == "bytes":
        checkpoint = JaxCheckpoint.from_bytes(checkpoint.to_bytes())
    found = checkpoint.get_state(a_state(scale=2.0))
    assert jax.tree.structure(found) == jax.tree.structure(saved)
    for (path, expected), value in zip(jax.tree_util.tree_leaves_with_path(saved), jax.tree.leaves(found), strict=True):
        assert type(value) is type(expected), path
        assert getattr(value, "dtype", None) == getattr(expected, "dtype", None), path
        if path == (jax.tree_util.DictKey("key"),):
            value, expected = jax.random.key_data(value), jax.random.key_data(expected)
        assert np.array_equal(value, expected), path


def test_without_a_target_it_is_numpy_in_dicts_and_lists(tmp_path: Path) -> None:
    directory = JaxCheckpoint.from_state(a_state()).to_directory(tmp_path / "saved")
    found = JaxCheckpoint.from_directory(directory).get_state()
    assert isinstance(found["params"]["kernel"], np.ndarray)
    assert found["params"]["bias"].dtype == jnp.bfloat16
    assert found["moments"]["second"][1] == 4
    assert (found["step"], found["rate"], found["flag"], found["name"]) == (7, 0.5, True, "a state")
    assert (found["nothing"], found["empty"]) == (None, {})


def test_orbax_reads_it_and_its_own_checkpoints_are_read(tmp_path: Path) -> None:
    import orbax.checkpoint as ocp

    directory = JaxCheckpoint.from_state({"w": jnp.arange(3.0)}).to_directory(tmp_path / "ours")
    found = ocp.PyTreeCheckpointer().restore(Path(directory) / "state", item={"w": np.zeros(3)})
    assert np.array_equal(found["w"], [0, 1, 2])
    ocp.PyTreeCheckpointer().save(tmp_path / "theirs", {"w": jnp.arange(2.0)})
    assert np.array_equal(JaxCheckpoint.from_directory(tmp_path / "theirs").get_state()["w"], [0, 1])


def test_a_target_of_shapes_is_enough(tmp_path: Path) -> None:
    directory = JaxCheckpoint.from_state({"w": jnp.arange(4.0), "n": 1}).to_directory(tmp_path / "saved")
    shapes = {"w": jax.ShapeDtypeStruct((4,), jnp.float16), "n": 0}
    found = JaxCheckpoint.from_directory(directory).get_state(shapes)
    assert (found["w"].dtype, found["n"]) == (jnp.float16, 1)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ({"w": jnp.zeros(4), "other": 1}, "other"),
        ({}, "w"),
        ({"w": jnp.zeros(5)}, r"\['w'\] has the shape \(4,\), and \(5,\) in the target"),
    ],
)
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_target_that_does_not_fit_is_told(target: Any, told: str, in_memory: bool, tmp_path: Path) -> None:
    checkpoint = JaxCheckpoint.from_state({"w": jnp.arange(4.0)})
    if not in_memory:
        checkpoint = JaxCheckpoint.from_directory(checkpoint.to_directory(tmp_path / "saved"))
    with pytest.raises(CheckpointError, match=told):
        checkpoint.get_state(target)


def test_what_is_not_a_state_is_told() -> None:
    with pytest.raises(ConfigError, match=r"state\['model'\]\['f'\] is a function"):
        JaxCheckpoint.from_state({"w": jnp.ones(1), "model": {"f": lambda: None}})
    with pytest.raises(ConfigError, match=r"state\['w'\]\[0\] has no elements"):
        JaxCheckpoint.from_state({"w": [jnp.ones((0, 2))]})
    with pytest.raises(ConfigError, match="without any array"):
        JaxCheckpoint.from_state({})
    with pytest.raises(ConfigError, match=r"state\['a'\]\['b'\] and state\['a.b'\] would have the same name"):
        JaxCheckpoint.from_state({"a": {"b": jnp.ones(2)}, "a.b": jnp.zeros(2)})


def test_a_state_that_was_given_away_is_told(tmp_path: Path) -> None:
    state = {"w": jnp.ones(3)}
    checkpoint = JaxCheckpoint.from_state(state)
    state["w"].delete()  # what a step with donate_argnums does
    with pytest.raises(CheckpointError, match=r"donate_argnums"):
        checkpoint.to_directory(tmp_path / "saved")


def test_a_checkpoint_of_something_else_says_what_it_has(tmp_path: Path) -> None:
    directory = Checkpoint.from_dict({"w": 1}).to_directory(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"to_dict\(\)"):
        JaxCheckpoint.from_directory(directory).get_state()


def test_reading_never_unpickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of classes in the file about the structure are not imported either."""
    directory = Path(JaxCheckpoint.from_state(a_state()).to_directory(tmp_path / "saved"))
    structure = directory / "state" / "_METADATA"
    content = json.loads(structure.read_text())
    content["custom_metadata"] = {"module_name": "canary", "class_name": "Canary"}
    structure.write_text(json.dumps(content))
    (tmp_path / "canary.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    unpickled = []
    with monkeypatch.context() as patch:
        for name in ("load", "loads", "Unpickler"):
            patch.setattr(pickle, name, unpickled.append)
        assert JaxCheckpoint.from_directory(directory).get_state()["step"] == 7
    assert not unpickled


# -- several processes -----------------------------------------------------------------------------

DONE, STEPS = 3, 6
SHAPE = (12, 4)


def sharded_loop(config: dict[str, Any]) -> None:
    """Rows 0 to 11 of a matrix, over all devices; each step adds one."""
    mesh = mesh_of_all()
    fresh = {
        "matrix": jax.make_array_from_callback(
            SHAPE, over_rows(mesh), lambda index: np.zeros(SHAPE, np.float32)[index]
        ),
        "vector": jax.device_put(np.zeros(3, np.float32), everywhere(mesh)),
        "step": 0,
    }
    checkpoint = train.get_checkpoint()
    state = fresh if checkpoint is None else JaxCheckpoint.from_checkpoint(checkpoint).get_state(fresh)
    assert state["matrix"].sharding == fresh["matrix"].sharding
    numbers = jax.make_array_from_callback(
        SHAPE, over_rows(mesh), lambda index: np.arange(48, dtype=np.float32).reshape(SHAPE)[index]
    )
    add = jax.jit(lambda state, more: {"matrix": state["matrix"] + more, "vector": state["vector"] + 1})
    rank = train.get_context().get_world_rank()
    for step in range(state["step"] + 1, config["steps"] + 1):
        state = {**add({"matrix": state["matrix"], "vector": state["vector"]}, numbers), "step": step}
        total = float(jax.jit(lambda matrix: matrix.sum(), out_shardings=everywhere(mesh))(state["matrix"]))
        if step == config.get("kill") and rank == 1 and Marks(config["marks"]).claim("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        train.report({"total": total}, checkpoint=JaxCheckpoint.from_state(state))


def sharded_trainer(folder: Path, steps: int, *, workers: Any = 2, devices: int = 1, **settings: Any) -> JaxTrainer:
    config = {"steps": steps, "marks": str(folder / "marks"), **settings.pop("config", {})}
    return JaxTrainer(
        sharded_loop,
        train_loop_config=config,
        jax_config=JaxConfig(cpu_devices_per_worker=devices),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=str(folder / "results"), verbose=0, **settings.pop("run", {})),
        **settings,
    )


@pytest.mark.parametrize("async_save", [False, True])
def test_each_process_writes_its_part_and_other_numbers_of_processes_read_it(async_save: bool, tmp_path: Path) -> None:
    saving = CheckpointConfig(num_to_keep=1, async_save=async_save)
    result = sharded_trainer(tmp_path, DONE, run={"checkpoint_config": saving}).fit()
    assert result.checkpoint is not None
    check_run(result.path, result=result, iterations=DONE, attempts=1)
    with result.checkpoint.as_directory() as folder:
        parts = {path.name for path in Path(folder, "state", "matrix").iterdir()}
    assert parts == {".zarray", "0.0", "1.0"}
    whole = JaxCheckpoint.from_checkpoint(result.checkpoint).get_state()
    expected = np.arange(48, dtype=np.float32).reshape(SHAPE)
    assert np.array_equal(whole["matrix"], DONE * expected)
    assert np.array_equal(whole["vector"], [DONE] * 3)
    for workers, devices in ((1, 1), (3, 2)) if not async_save else ():
        later = sharded_trainer(
            tmp_path, STEPS, workers=workers, devices=devices, resume_from_checkpoint=result.checkpoint
        ).fit()
        assert later.metrics is not None
        assert later.metrics["total"] == STEPS * expected.sum()
        assert later.metrics["training_iteration"] == STEPS - DONE


def test_a_killed_rank_costs_no_part_of_the_state(tmp_path: Path) -> None:
    failing = {"failure_config": FailureConfig(max_failures=1), "checkpoint_config": CheckpointConfig(num_to_keep=1)}
    result = sharded_trainer(tmp_path, STEPS, run=failing, config={"kill": 4}).fit()
    check_run(result.path, result=result, iterations=STEPS, attempts=2)
    assert result.metrics is not None
    assert result.metrics["total"] == STEPS * np.arange(48).sum()


def test_values_that_every_process_has_are_written_by_the_first(tmp_path: Path) -> None:
    def loop() -> None:
        rank = train.get_context().get_world_rank()
        local = jnp.full(2, rank + 1.0)
        shared = jax.device_put(np.ones(2, np.float32), everywhere(mesh_of_all()))
        checkpoint = JaxCheckpoint.from_state({"local": local, "shared": shared, "rank": rank})
        assert checkpoint.part is None
        train.report({}, checkpoint=checkpoint)

    result = JaxTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert result.checkpoint is not None
    found = JaxCheckpoint.from_checkpoint(result.checkpoint).get_state()
    assert (found["local"].tolist(), found["shared"].tolist(), found["rank"]) == ([1, 1], [1, 1], 0)


def test_a_damaged_part_is_noticed_before_it_is_used(tmp_path: Path) -> None:
    result = sharded_trainer(tmp_path, 1).fit()
    assert result.checkpoint is not None
    part = Path(str(result.checkpoint.path), "state", "matrix", "1.0")
    content = bytearray(part.read_bytes())
    content[0] ^= 1
    part.write_bytes(content)
    with pytest.raises(CheckpointCorruptError, match=r"1\.0"):
        JaxCheckpoint.from_checkpoint(result.checkpoint).get_state()
