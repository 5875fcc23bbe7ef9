"""Elastic runs: the number of workers follows the room that there is, between attempts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline.data
from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig, session
from paceline.air.context import get_context
from paceline.air.errors import ConfigError, TrainingFailedError
from paceline.engine.base import Placement, WorkerGroup
from paceline.run import attempt, sizing
from paceline.run.callbacks import Callback
from paceline.run.found_runs import summary_of
from paceline.run.records import AttemptFailed, AttemptStarted, RunRecords
from paceline.run.scaling_policy import ScalingSituation
from paceline.run.spec import Trial
from paceline.storage.run_dir import RunDir
from paceline.testing.elastic_engine import ElasticEngine
from paceline.testing.processes import Marks
from paceline.train.collective import barrier
from paceline.train.data_parallel_trainer import DataParallelTrainer

MOST_STEPS = 5_000
"""A guard: a loop that is never given the workers it waits for ends here, and the test fails."""


@pytest.fixture
def engine() -> Iterator[ElasticEngine]:
    engine = ElasticEngine({"a": 1, "b": 1})
    yield engine
    engine.close()


class AtRow(Callback):
    """Does something at the n-th row of the run, in the driver."""

    def __init__(self, row: int, do: Callable[[], Any]) -> None:
        self._row, self._do, self._seen = row, do, 0

    def on_trial_result(self, iteration: int, trials: Any, trial: Trial, result: dict[str, Any], **info: Any) -> None:
        self._seen += 1
        if self._seen == self._row:
            self._do()


def step_until(config: dict[str, Any]) -> None:
    """Report, with a checkpoint each time, until there are as many workers as the test waits for."""
    checkpoint = session.get_checkpoint()
    step = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    rows = 0
    while step < MOST_STEPS:
        step, rows = step + 1, rows + 1
        saved = Checkpoint.from_dict({"step": step}) if step % config.get("every", 1) == 0 else None
        session.report({"step": step, "size": session.get_world_size()}, checkpoint=saved)
        barrier()  # as training does that averages gradients
        if session.get_world_size() == config["until"] and rows >= config.get("rows", 1):
            return


def fit(
    engine: ElasticEngine,
    loop: Callable[..., Any],
    *callbacks: Callback,
    workers: tuple[int, int] = (1, 2),
    failures: FailureConfig | None = None,
    checkpoints: CheckpointConfig | None = None,
    policy: Any = None,
    interval_s: float = 0.02,
    datasets: dict[str, Any] | None = None,
    **config: Any,
) -> Result:
    return DataParallelTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers, elastic_resize_monitor_interval_s=interval_s, policy=policy),
        run_config=RunConfig(
            engine=engine,
            callbacks=list(callbacks),
            failure_config=failures or FailureConfig(),
            checkpoint_config=checkpoints or CheckpointConfig(num_to_keep=1),
            verbose=0,
        ),
        datasets=datasets,
    ).fit()


def records(result: Result) -> RunRecords:
    assert result.log_dir is not None
    return RunRecords.read(RunDir(result.log_dir))


def sizes(result: Result) -> list[int]:
    return [record.world_size for record in records(result) if isinstance(record, AttemptStarted)]


def failures(result: Result) -> list[tuple[str, bool]]:
    return [(record.cause, record.charged) for record in records(result) if isinstance(record, AttemptFailed)]


def test_a_lost_node_shrinks_the_group_and_is_not_charged(engine: ElasticEngine) -> None:
    """max_failures is 0, and the run continues."""
    result = fit(engine, step_until, AtRow(3, lambda: engine.lose_node("b")), until=1, rows=2)
    assert sizes(result) == [2, 1]
    assert failures(result) == [("node_lost", False)]
    steps = [row["step"] for row in result.metrics_dataframe.to_dict("records")]
    assert steps == list(range(1, len(steps) + 1))


def test_a_group_grows_after_a_checkpoint(engine: ElasticEngine) -> None:
    """No report is repeated: the larger group continues where the checkpoint was saved."""
    grow = AtRow(2, lambda: engine.add_node("c", 1))
    result = fit(engine, step_until, grow, workers=(1, 3), until=3, rows=2, every=3)
    assert sizes(result) == [2, 3]
    assert failures(result) == []
    second = [record for record in records(result) if isinstance(record, AttemptStarted)][1]
    assert second.start_index % 3 == 0
    frame = result.metrics_dataframe
    assert frame is not None
    assert list(frame["step"]) == list(range(1, len(frame) + 1))
    assert list(frame["size"]) == [2] * second.start_index + [3] * (len(frame) - second.start_index)
    assert result.attempts == 2


def test_growing_with_checkpoints_that_are_saved_in_the_background(engine: ElasticEngine) -> None:
    grow = AtRow(2, lambda: engine.add_node("c", 1))
    saving = CheckpointConfig(num_to_keep=2, async_save=True)
    result = fit(engine, step_until, grow, workers=(1, 3), until=3, rows=2, every=3, checkpoints=saving)
    assert sizes(result) == [2, 3]
    frame = result.metrics_dataframe
    assert frame is not None
    assert list(frame["step"]) == list(range(1, len(frame) + 1))


def test_room_that_is_gone_again_does_not_restart_the_group(engine: ElasticEngine, tmp_path: Path) -> None:
    """The policy is asked again when the checkpoint is there."""
    marks = Marks(tmp_path)
    asked: list[int | None] = []

    def policy(situation: ScalingSituation) -> int | None:
        if situation.occasion == "start":
            return 1
        asked.append(2 if not asked else 1)
        marks.say("asked")
        return asked[-1]

    def loop() -> None:
        step = 0
        while not marks.read("asked") and (step := step + 1) < MOST_STEPS:
            session.report({"step": step})
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
        session.report({"step": step})

    result = fit(engine, loop, policy=policy)
    assert asked[:2] == [2, 1]
    assert sizes(result) == [1]


def test_a_killed_worker_is_charged(engine: ElasticEngine, tmp_path: Path) -> None:
    """The group does not shrink for it: there is still room for two."""
    marks = Marks(tmp_path)

    def loop() -> None:
        for step in range(4):
            session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
            if step == 1 and session.get_world_rank() == 1 and marks.claim("kill"):
                os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(TrainingFailedError, match="SIGKILL") as caught:
        fit(engine, loop)
    assert failures(caught.value.result) == [("signal", True)]
    again = Marks(tmp_path / "again")
    marks = again
    result = fit(engine, loop, failures=FailureConfig(max_failures=1))
    assert sizes(result) == [2, 2]
    assert failures(result) == [("signal", True)]


def test_too_little_room_is_waited_for(engine: ElasticEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a loss as well as at the start. A wait that lasts is announced."""
    monkeypatch.setattr(sizing, "ANNOUNCE_S", -1.0)
    engine.lose_node("b")
    comes_next = iter([("b", 1), ("c", 2)])

    def policy(situation: ScalingSituation) -> int | None:
        if situation.fitting is None:
            engine.add_node(*next(comes_next))
        return situation.fitting

    lose = AtRow(2, lambda: engine.lose_node("a"))
    result = fit(engine, step_until, lose, workers=(2, 3), until=3, rows=2, policy=policy)
    assert sizes(result) == [2, 3]
    waits = [warning for warning in result.warnings if "Waiting for room" in warning]
    assert len(waits) == 2
    assert all("room for 1 worker " in text and "needs at least 2" in text for text in waits)


def test_the_wait_for_room_can_be_limited(engine: ElasticEngine) -> None:
    with pytest.raises(TrainingFailedError, match=r"room for 2 workers.*needs at least 4.*resource_timeout_s=0.1"):
        fit(engine, step_until, workers=(4, 8), until=4, failures=FailureConfig(resource_timeout_s=0.1, max_failures=3))


def test_a_wait_after_a_loss_that_takes_too_long_has_no_step(engine: ElasticEngine) -> None:
    """The attempt before it has reported; the one that found no room has not."""
    lose = AtRow(2, lambda: engine.lose_node("b"))
    with pytest.raises(TrainingFailedError, match=r"resource_timeout_s=0.1") as caught:
        fit(engine, step_until, lose, workers=(2, 3), until=3, failures=FailureConfig(resource_timeout_s=0.1))
    assert [failure.root_cause.kind for failure in caught.value.failures] == ["node_lost", "startup"]
    assert caught.value.step is None


class StrictEngine(ElasticEngine):
    """One that can never place two workers, although it has room for them: think of STRICT_SPREAD on one node."""

    def start_group(self, placement: Placement) -> WorkerGroup:
        if placement.world_size > 1:
            raise ConfigError("the cluster can never hold 2 workers")
        return super().start_group(placement)


def test_a_size_that_can_never_be_placed_is_tried_once() -> None:
    engine = StrictEngine(2)
    try:
        result = fit(engine, step_until, until=1, rows=20, interval_s=0.001)
        assert sizes(result) == [1]
        with pytest.raises(ConfigError, match="never hold"):
            fit(engine, step_until, workers=(2, 3), until=2)
    finally:
        engine.close()


def share_a_batch(config: dict[str, Any]) -> None:
    """Three workers cannot share a batch of four rows."""
    checkpoint = session.get_checkpoint()
    step = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    shard = session.get_dataset_shard("train")
    for _ in shard.iter_epochs(config.get("epochs", 1)):
        for batch in shard.iter_batches(global_batch_size=4):
            step += 1
            row = {"step": step, "size": session.get_world_size(), "ids": batch["id"].tolist()}
            session.report(row, checkpoint=Checkpoint.from_dict({"step": step}))
            barrier()


def batches(rows: int) -> dict[str, Any]:
    return {"train": paceline.data.range(rows)}


@pytest.mark.parametrize("only_three", [False, True])
def test_a_size_that_the_loop_refuses_is_left_again(engine: ElasticEngine, only_three: bool) -> None:
    """It is not charged, and tried once. That holds for a policy, too, that wants no other size."""

    def three(situation: ScalingSituation) -> int | None:
        return 2 if situation.occasion == "start" else 3

    grow = AtRow(3, lambda: engine.add_node("c", 1))
    strict = FailureConfig(never_retry=[ValueError])
    policy = three if only_three else None
    result = fit(
        engine,
        share_a_batch,
        grow,
        workers=(1, 3),
        policy=policy,
        failures=strict,
        datasets=batches(80),
        interval_s=0.02,
    )
    assert sizes(result) == [2, 3, 2]
    assert failures(result) == [("worker_count", False)]
    frame = result.metrics_dataframe
    assert frame is not None
    assert list(frame["step"]) == list(range(1, 21))
    assert set(frame["size"]) == {2}
    assert any("not divisible by the 3 workers" in warning for warning in result.warnings)


def test_a_larger_size_than_a_refused_one_is_used(engine: ElasticEngine) -> None:
    """Four workers can share what three cannot. When one of them is lost, three are not tried again."""
    grow = AtRow(3, lambda: engine.add_node("c", 1))
    grow_more = AtRow(10, lambda: engine.add_node("d", 1))
    lose = AtRow(20, lambda: engine.lose_node("d"))
    result = fit(engine, share_a_batch, grow, grow_more, lose, workers=(1, 4), datasets=batches(200), interval_s=0.02)
    assert sizes(result) == [2, 3, 2, 4, 2]
    assert failures(result) == [("worker_count", False), ("node_lost", False)]


def test_a_size_that_the_loop_refuses_at_the_start_is_an_error(engine: ElasticEngine) -> None:
    engine.add_node("c", 1)
    with pytest.raises(ValueError, match=r"4 is not divisible by the 3 workers.*policy") as caught:
        fit(engine, share_a_batch, workers=(1, 3), datasets=batches(8))
    assert failures(getattr(caught.value, "result")) == [("exception", True)]  # noqa: B009


def test_a_run_that_can_only_have_a_size_that_its_loop_refuses_fails(engine: ElasticEngine) -> None:
    engine.add_node("c", 2)
    lose = AtRow(3, lambda: engine.lose_node("b"))
    with pytest.raises(ValueError, match="not divisible by the 3 workers"):
        fit(engine, share_a_batch, lose, workers=(3, 4), datasets=batches(80))


def test_a_policy_of_the_user_chooses(engine: ElasticEngine) -> None:
    seen: list[ScalingSituation] = []

    def one_at_first(situation: ScalingSituation) -> int | None:
        seen.append(situation)
        return 1 if situation.occasion == "start" else situation.fitting

    result = fit(engine, step_until, until=2, rows=2, policy=one_at_first)
    assert sizes(result) == [1, 2]
    assert seen[0] == ScalingSituation(1, 2, 2, 0, "start")
    assert [each for each in seen if each.occasion == "resize"] == [ScalingSituation(1, 2, 2, 1, "resize")]


def test_a_draining_node_is_no_room(engine: ElasticEngine) -> None:
    engine.drain_node("b")
    assert sizes(fit(engine, step_until, until=1, rows=2)) == [1]


def test_a_node_that_drains_is_left_after_a_checkpoint(engine: ElasticEngine) -> None:
    """Not a failure: max_failures is 0. No report is repeated, because all ranks have saved."""
    drain = AtRow(2, lambda: engine.drain_node("b"))
    result = fit(engine, save_when_asked, drain, until=1)
    assert sizes(result) == [2, 1]
    assert failures(result) == [("preempted", False)]
    frame = result.metrics_dataframe
    assert frame is not None
    assert list(frame["step"]) == list(range(1, len(frame) + 1))


def save_when_asked(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    start = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    for step in range(start + 1, MOST_STEPS):
        saved = Checkpoint.from_dict({"step": step}) if session.should_checkpoint() else None
        session.report({"step": step}, checkpoint=saved)
        if session.get_world_size() == config["until"]:
            return
        barrier()


def test_room_that_cannot_be_placed_leads_to_a_smaller_group(
    engine: ElasticEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else may take the room between the question and the start. No attempt is counted for it."""
    monkeypatch.setattr(attempt, "PLACE_S", 0.01)
    monkeypatch.setattr(ElasticEngine, "room", lambda self, bundle: 4)
    result = fit(engine, step_until, workers=(1, 4), until=2, interval_s=60.0)
    assert sizes(result) == [2]
    assert result.attempts == 1


def test_sizes_in_the_output(engine: ElasticEngine, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = DataParallelTrainer(
        step_until,
        train_loop_config={"until": 1},
        scaling_config=ScalingConfig(num_workers=(1, 2)),
        run_config=RunConfig(engine=engine, callbacks=[AtRow(2, lambda: engine.lose_node("b"))], verbose=1),
    )
    trainer.fit()
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert "starting 1 to 2 workers" in text
    assert ": 2 workers now" in text
    assert ": 1 worker now (previously 2)" in text


def test_the_world_size_behind_the_checkpoint(engine: ElasticEngine) -> None:
    """None at first; then that of the attempt that saved the checkpoint, also where checkpoints are in memory."""
    for saving in (CheckpointConfig(num_to_keep=1), CheckpointConfig(num_to_keep=0)):
        engine.add_node("b", 1)
        lose = AtRow(2, lambda: engine.lose_node("b"))
        result = fit(engine, tell_previous, lose, checkpoints=saving, until=1, interval_s=60.0)
        frame = result.metrics_dataframe
        assert frame is not None
        assert (frame["size"][0], frame["previous"][0]) == (2, 0)
        assert (result.metrics["size"], result.metrics["previous"]) == (1, 2)
    again = DataParallelTrainer(
        tell_previous,
        train_loop_config={"until": 2},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0),
        resume_from_checkpoint=fit(engine, tell_previous, until=1).checkpoint,
    ).fit()
    assert again.metrics["previous"] == 1


def tell_previous(config: dict[str, Any]) -> None:
    for step in range(MOST_STEPS):
        previous = session.get_previous_world_size() or 0
        assert previous == (get_context().get_previous_world_size() or 0)
        row = {"size": session.get_world_size(), "previous": previous}
        session.report(row, checkpoint=Checkpoint.from_dict({"step": step}))
        if session.get_world_size() == config["until"]:
            return


def test_what_each_attempt_says_is_shown_once(engine: ElasticEngine) -> None:
    def loop(config: dict[str, Any]) -> None:
        session.active().warn("read this")
        step_until(config)

    result = fit(engine, loop, AtRow(3, lambda: engine.lose_node("b")), until=1)
    assert sizes(result) == [2, 1]
    assert result.warnings.count("read this") == 1


def test_trial_resources_are_those_of_the_attempt(engine: ElasticEngine) -> None:
    def loop() -> None:
        factory = session.get_trial_resources()
        assert factory is not None
        session.report({"bundles": len(factory.bundles)})

    engine.lose_node("b")
    assert fit(engine, loop, workers=(1, 4)).metrics["bundles"] == 2


def test_what_is_said_of_an_elastic_run(engine: ElasticEngine) -> None:
    """The number of its workers is that of the last attempt; settings are kept for restore()."""
    result = fit(engine, step_until, AtRow(3, lambda: engine.lose_node("b")), workers=(1, 4), until=1, rows=2)
    assert result.log_dir is not None
    assert summary_of(result.log_dir).num_workers == 1
    assert records(result).settings["scaling_config"]["num_workers"] == [1, 4]
