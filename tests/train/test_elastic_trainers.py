"""Every framework connects its workers anew when their number changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import paceline.data
from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig, session
from paceline.run.callbacks import Callback
from paceline.run.records import AttemptStarted, RunRecords
from paceline.storage.run_dir import RunDir
from paceline.testing.elastic_engine import ElasticEngine
from tests.contracts import framework_trainings as trainings

MOST_STEPS = 3_000


@pytest.fixture
def engine() -> Iterator[ElasticEngine]:
    engine = ElasticEngine({"a": 1, "b": 1})
    yield engine
    engine.close()


class LosesANode(Callback):
    """Loses one at the third row. A node joins once there is only one worker."""

    def __init__(self, engine: ElasticEngine) -> None:
        self._engine, self._rows = engine, 0

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self._rows += 1
        if self._rows == 3:
            self._engine.lose_node("b")
        if self._engine.workers == 1 and "c" not in self._engine.nodes:
            self._engine.add_node("c", 1)


def settings(engine: ElasticEngine, **checkpoints: Any) -> dict[str, Any]:
    return {
        "scaling_config": ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=0.05),
        "run_config": RunConfig(
            engine=engine,
            callbacks=[LosesANode(engine)],
            checkpoint_config=CheckpointConfig(num_to_keep=1, **checkpoints),
            failure_config=FailureConfig(start_timeout_s=120),
            verbose=0,
        ),
    }


def sizes(result: Result) -> list[int]:
    records = [each for each in RunRecords.read(RunDir(Path(result.path))) if isinstance(each, AttemptStarted)]
    return [size for size, _ in itertools.groupby(each.world_size for each in records)]


def add_up(config: dict[str, Any]) -> None:
    """Each step is a collective of all workers there are."""
    checkpoint = session.get_checkpoint()
    start = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    size = session.get_world_size()
    for step in range(start + 1, MOST_STEPS):
        total = config["sum"](1.0) if size > 1 else 1.0
        assert total == size
        session.report({"step": step, "size": size}, checkpoint=Checkpoint.from_dict({"step": step}))
        if (session.get_previous_world_size(), size) == (1, 2):
            return


def torch_trainer() -> tuple[Any, Callable[[float], float]]:
    from paceline.train.torch import TorchTrainer

    return TorchTrainer, trainings.torch_sum


def tensorflow_trainer() -> tuple[Any, Callable[[float], float]]:
    skip_without("tensorflow")
    from paceline.train.tensorflow import TensorflowTrainer

    return TensorflowTrainer, trainings.tensorflow_sum


def jax_trainer() -> tuple[Any, Callable[[float], float]]:
    skip_without("jax")
    from paceline.train.jax import JaxTrainer

    return JaxTrainer, trainings.jax_sum


def horovod_trainer() -> tuple[Any, Callable[[float], float]]:
    skip_without("horovod")
    from paceline.train.horovod import HorovodTrainer

    return HorovodTrainer, horovod_sum


def horovod_sum(number: float) -> float:
    import horovod.torch as hvd

    hvd.init()
    return trainings.horovod_torch_sum(number)


def skip_without(package: str) -> None:
    """Without importing it, which sets variables of this process."""
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")


@pytest.mark.parametrize(
    "trainer",
    [
        torch_trainer,
        jax_trainer,
        pytest.param(tensorflow_trainer, marks=pytest.mark.slow),
        pytest.param(horovod_trainer, marks=pytest.mark.slow),
    ],
)
def test_workers_are_connected_in_every_size(
    trainer: Callable[[], tuple[Any, Callable[[float], float]]], engine: ElasticEngine
) -> None:
    kind, add = trainer()
    result = kind(add_up, train_loop_config={"sum": add}, **settings(engine)).fit()
    assert sizes(result) == [2, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["xgboost", "lightgbm"])
def test_trees_continue_with_another_number_of_workers(package: str, engine: ElasticEngine) -> None:
    skip_without(package)
    rows = [{"x": float(number), "y": float(number % 7)} for number in range(400)]
    common: dict[str, Any] = {"datasets": {"train": paceline.data.from_items(rows)}, "num_boost_round": 300}
    common |= {"label_column": "y", **settings(engine, checkpoint_frequency=1)}
    if package == "xgboost":
        from paceline.train.xgboost import XGBoostTrainer

        result = XGBoostTrainer(params={"objective": "reg:squarederror", "max_depth": 2}, **common).fit()
    else:
        from paceline.train.lightgbm import LightGBMTrainer

        result = LightGBMTrainer(params={"objective": "regression", "num_leaves": 4, "verbose": -1}, **common).fit()
    assert sizes(result) == [2, 1, 2]
    assert result.metrics["training_iteration"] == 300
