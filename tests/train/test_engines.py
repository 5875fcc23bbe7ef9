"""The same training on every engine, and how one is chosen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import train
from paceline.air import Checkpoint, session
from paceline.air.errors import ConfigError, EngineError, TrainingFailedError
from paceline.testing.invariants import check_run
from tests.train.quick import quick_trainer


def report_process(config: dict[str, Any]) -> None:
    start = train.load_checkpoint() or {"step": -1}
    for step in range(start["step"] + 1, 3):
        session.report({"step": step, "pid": os.getpid()}, checkpoint=Checkpoint.from_dict({"step": step}))


@pytest.mark.parametrize("engine", ["local", "inline"])
def test_the_same_loop_on_every_engine(engine: str) -> None:
    result = quick_trainer(report_process, workers=1, config={}, engine=engine).fit()
    check_run(result.path, result=result, iterations=3, attempts=1)
    assert result.metrics_dataframe["step"].tolist() == [0, 1, 2]
    assert [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints] == [0, 1, 2]
    assert (Path(result.path) / "progress.csv").exists()
    assert (result.metrics["pid"] == os.getpid()) is (engine == "inline")


def test_inline_stops_and_fails_like_the_others() -> None:
    def endless() -> None:
        while True:
            session.report({"rows": 1})

    stopped = quick_trainer(endless, workers=1, engine="inline", stop={"training_iteration": 5}).fit()
    check_run(stopped.path, result=stopped, iterations=5)

    def broken() -> None:
        session.report({})
        raise ValueError("inline")

    with pytest.raises(TrainingFailedError) as caught:
        quick_trainer(broken, workers=1, engine="inline").fit()
    assert isinstance(caught.value.__cause__, ValueError)


def test_on_one_machine_a_type_of_gpu_has_no_effect(results_dir: Path) -> None:
    trainer = quick_trainer(report_process, workers=1, config={}, engine="inline")
    trainer.scaling_config.accelerator_type = "A100"
    with pytest.warns(UserWarning, match=r"accelerator_type='A100' has no effect.*GPUs") as caught:
        trainer.fit()
    assert [warning.filename for warning in caught] == [__file__]


def test_a_limit_of_cpus_per_node_has_no_effect(results_dir: Path) -> None:
    trainer = quick_trainer(report_process, workers=1, config={}, engine="inline")
    trainer.scaling_config._max_cpu_fraction_per_node = 0.5
    with pytest.warns(UserWarning, match="_max_cpu_fraction_per_node has no effect"):
        trainer.fit()


@pytest.fixture
def uninitialized() -> Any:
    paceline.shutdown()
    yield
    paceline.shutdown()


def test_init_declares_the_default_engine(uninitialized: None) -> None:
    assert not paceline.is_initialized()
    paceline.init(engine="inline", num_cpus=1)
    assert paceline.is_initialized()
    with pytest.raises(EngineError, match="shutdown"):
        paceline.init()
    result = quick_trainer(report_process, workers=1, config={}).fit()
    assert result.metrics["pid"] == os.getpid()
    paceline.shutdown()
    assert not paceline.is_initialized()
    assert quick_trainer(report_process, workers=1, config={}).fit().metrics["pid"] != os.getpid()


def test_the_environment_chooses_an_engine(uninitialized: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_ENGINE", "inline")
    result = quick_trainer(report_process, workers=1, config={}).fit()
    assert result.metrics["pid"] == os.getpid()


def test_an_engine_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="local"):
        quick_trainer(lambda: None, engine="slurm").fit()


def test_a_trainer_can_be_fitted_again() -> None:
    trainer = quick_trainer(report_process, inline=True, config={}, name="twice")
    first, second = trainer.fit(), trainer.fit()
    assert first.path != second.path
    assert Path(first.path).parent == Path(second.path).parent
    assert first.metrics_dataframe["step"].tolist() == second.metrics_dataframe["step"].tolist() == [0, 1, 2]


def test_many_workers_on_few_cores() -> None:
    result = quick_trainer(lambda: session.report({"size": session.get_world_size()}), workers=8).fit()
    assert [metrics["size"] for metrics in result.rank_metrics.values()] == [8] * 8
