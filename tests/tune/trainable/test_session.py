"""Function trainables: how they may be written, and what becomes of what they report, yield and return."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, FailureConfig, session
from paceline.air.errors import ConfigError, SerializationError, SessionMisuseError, TrainingFailedError
from paceline.air.result import Result
from paceline.tune.trainable import session as tune
from paceline.tune.trainable.kinds import kind_of
from tests.tune.trainable.one_trial import run_trial


def column(result: Result, name: str) -> list[Any]:
    assert result.metrics_dataframe is not None
    return list(result.metrics_dataframe[name])


# -- what is reported -------------------------------------------------------------------------


def test_a_returned_dict_is_the_last_report() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        session.report({"score": config["x"]})
        return {"score": 10 * config["x"]}

    result = run_trial(train, {"x": 3})
    assert column(result, "score") == [3, 30]
    assert result.metrics["training_iteration"] == 2
    assert result.config == {"x": 3}


def test_a_returned_number_has_a_name_of_its_own() -> None:
    assert run_trial(lambda config: config["x"] / 2, {"x": 3}).metrics["_metric"] == 1.5
    assert run_trial(lambda config: 0).metrics["_metric"] == 0


def test_a_number_may_be_reported_without_a_name() -> None:
    def train(config: dict[str, Any]) -> None:
        tune.report(5)
        tune.report(0.5, epoch=2)

    def old(config: dict[str, Any], reporter: Any) -> None:
        reporter(7)

    result = run_trial(train)
    assert column(result, "_metric") == [5, 0.5]
    assert result.metrics["epoch"] == 2
    assert run_trial(old).metrics["_metric"] == 7


def test_a_function_may_report_nothing() -> None:
    result = run_trial(lambda config: None)
    assert result.error is None
    assert "training_iteration" not in result.metrics


def test_a_generator_reports_what_it_yields() -> None:
    def train(config: dict[str, Any]) -> Iterator[Any]:
        yield {"step": 0}
        yield {"step": 1}
        return {"step": 2}

    assert column(run_trial(train), "step") == [0, 1, 2]


def test_a_generator_that_is_stopped_takes_no_further_step_and_cleans_up(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> Iterator[Any]:
        try:
            for step in range(10):
                (tmp_path / f"step_{step}").touch()
                yield {"step": step}
        finally:
            (tmp_path / "cleaned up").touch()

    result = run_trial(train, stop={"step": 2})
    assert result.metrics["step"] == 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        *("cleaned up", "step_0", "step_1", "step_2"),
    ]


def test_what_is_no_row_is_dropped_with_a_word_if_there_are_rows_and_refused_if_not() -> None:
    def train(config: dict[str, Any]) -> object:
        if config["reports"]:
            session.report({"a": 1})
        return "the model"

    told = run_trial(train, {"reports": True}).warnings
    assert any("'the model' (str)" in warning for warning in told)
    with pytest.raises(TrainingFailedError, match=r"'the model'.*dict"):
        run_trial(train, {"reports": False})


# -- how a function may be written ------------------------------------------------------------


def test_the_reporter_of_old_code() -> None:
    def train(config: dict[str, Any], reporter: Any) -> None:
        reporter(score=config["x"], where=os.path.basename(reporter.logdir), of=reporter.trial_id)

    result = run_trial(train, {"x": 4})
    assert (result.metrics["score"], result.metrics["of"]) == (4, result.metrics["trial_id"])
    assert result.metrics["where"] == os.path.basename(str(result.path))


def test_the_checkpoint_dir_of_old_code_comes_back_on_a_retry() -> None:
    def train(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
        start = 0 if checkpoint_dir is None else int(Path(checkpoint_dir, "step").read_text())
        for step in range(start + 1, 5):
            with tune.checkpoint_dir(step) as directory:
                Path(directory, "step").write_text(str(step))
            tune.report(step=step, started_at=start)
            if step == 2 and start == 0:
                raise RuntimeError("once")

    result = run_trial(train, failure_config=FailureConfig(max_failures=1))
    assert column(result, "step") == [1, 2, 3, 4]
    assert column(result, "started_at") == [0, 0, 2, 2]
    assert [checkpoint.number for checkpoint, _ in result.best_checkpoints] == [0, 1, 2, 3]
    assert [path.name for path in Path(result.path).glob(".checkpoint_dir*")] == []


def test_a_checkpoint_dir_after_the_last_report_belongs_to_that_row() -> None:
    def train(config: dict[str, Any]) -> None:
        tune.report(a=1)
        with tune.checkpoint_dir(step=1) as directory:
            Path(directory, "weights").write_text("w")

    result = run_trial(train)
    assert result.checkpoint is not None
    assert Path(str(result.checkpoint.path), "weights").read_text() == "w"
    assert result.checkpoint.iteration == 1


def test_a_second_checkpoint_dir_for_the_last_row_is_not_lost_silently() -> None:
    def train(config: dict[str, Any]) -> None:
        with tune.checkpoint_dir(0) as directory:
            Path(directory, "weights").write_text("reported")
        tune.report(a=1)
        with tune.checkpoint_dir(1) as directory:
            Path(directory, "weights").write_text("too late")

    result = run_trial(train)
    assert result.checkpoint is not None
    assert Path(str(result.checkpoint.path), "weights").read_text() == "reported"
    assert any("tune.checkpoint_dir()" in warning for warning in result.warnings)


def test_a_row_has_one_checkpoint() -> None:
    def train(config: dict[str, Any]) -> None:
        with tune.checkpoint_dir(0):
            pass
        with (
            pytest.raises(SessionMisuseError, match=r"checkpoint_dir.*twice.*tune\.report"),
            tune.checkpoint_dir(1),
        ):
            pass
        with pytest.raises(SessionMisuseError, match=r"report\(checkpoint=.*checkpoint_dir\(\)"):
            tune.report(a=1, checkpoint=Checkpoint.from_dict({"b": 1}))
        tune.report({"a": 2})

    result = run_trial(train)
    assert result.metrics["a"] == 2
    assert result.checkpoint is not None
    assert list(Path(result.path).glob(".checkpoint_dir*")) == []


def test_names_of_the_trial() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        resources = tune.get_trial_resources()
        assert resources is not None
        return {
            "enabled": tune.is_session_enabled(),
            "id": tune.get_trial_id(),
            "name": tune.get_trial_name(),
            "dir": tune.get_trial_dir(),
            "cpus": resources.required_resources["CPU"],
            "checkpoint": tune.get_checkpoint() is not None,
        }

    metrics = run_trial(train).metrics
    assert metrics["enabled"]
    assert not metrics["checkpoint"]
    assert metrics["id"] == metrics["trial_id"]
    assert metrics["name"] == f"train_{metrics['trial_id']}"
    assert Path(metrics["dir"]).is_dir()
    assert metrics["cpus"] == 1
    assert not tune.is_session_enabled()


def test_callables_that_are_no_plain_functions() -> None:
    class Train:
        def __call__(self, config: dict[str, Any]) -> float:
            return float(config["x"])

        def method(self, config: dict[str, Any]) -> float:
            return float(-config["x"])

    def train(factor: int, config: dict[str, Any]) -> float:
        return float(factor * config["x"])

    assert kind_of(Train()).name == "Train"
    assert run_trial(Train(), {"x": 2}).metrics["_metric"] == 2
    assert run_trial(Train().method, {"x": 2}).metrics["_metric"] == -2
    assert kind_of(partial(train, 3)).name == "train"
    assert run_trial(partial(train, 3), {"x": 2}).metrics["_metric"] == 6
    assert kind_of(lambda config: None).name == "lambda"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: None, r"one argument.*<lambda> takes \(\)"),
        (lambda config, lr, steps: None, r"tune\.with_parameters\(\)"),
        (lambda config, *, lr: None, r"tune\.with_parameters\(\)"),
        (3, r"\b3\b"),
        (dict, r"class dict.*tune\.Trainable"),
        ("no such name", r"'no such name'.*register_trainable\(\)"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(function: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        kind_of(function)


def test_an_async_function_is_refused() -> None:
    async def train(config: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigError, match=r"train\(\).*async"):
        kind_of(train)


def test_a_function_that_cannot_travel_names_the_culprit() -> None:
    with open(os.devnull) as file:

        def train(config: dict[str, Any]) -> None:
            file.read()

        with pytest.raises(SerializationError, match=r"train.*'file'.*open file"):
            run_trial(train)
