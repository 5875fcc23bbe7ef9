"""Continuing a run after its driver is gone, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig, session
from paceline.air.errors import RestoreError, RunLockedError
from paceline.run.callbacks import Callback
from paceline.testing.invariants import check_run
from paceline.testing.processes import Driver, Marks
from paceline.train import BaseTrainer, DataParallelTrainer
from tests.train.counting import count
from tests.train.quick import quick_trainer

PROJECT = Path(__file__).parents[2]


def kill_a_run(directory: Path, **checkpoints: Any) -> Path:
    """Run to the sixth of eight steps and kill the driver there; the storage path that it leaves."""
    storage, marks = directory / "storage", Marks(directory / "marks")
    settings = {"steps": 8, "wait_at": 6, "marks": str(marks.directory)}
    arguments = ["-m", "tests.train.counting", str(storage), json.dumps(settings), json.dumps(checkpoints)]
    with Driver(arguments, output=directory / "driver.txt", cwd=PROJECT) as driver:
        marks.wait("waiting", 2)
        driver.kill()
    check_run(the_trial(storage), processes=driver.known(), swept=False)
    return storage


def the_trial(storage: Path) -> Path:
    (journal,) = (storage / "experiment").glob("*/journal.jsonl")
    return journal.parent


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kill_a_run(tmp_path_factory.mktemp("killed"))


@pytest.fixture
def killed(killed_once: Path, tmp_path: Path) -> Path:
    """The trial directory of a run whose driver was killed: each test has a copy of its own."""
    return the_trial(shutil.copytree(killed_once, tmp_path / "storage"))


def assert_one_history(result: Result, steps: int) -> None:
    """Dataframe, result.json and progress.csv tell the same story, 1 to `steps`."""
    import pandas

    check_run(result.path, result=result, iterations=steps)
    frame = result.metrics_dataframe
    assert frame["step"].tolist() == list(range(1, steps + 1))
    lines = [json.loads(line) for line in (Path(result.path) / "result.json").read_text().splitlines()]
    assert [line["step"] for line in lines] == frame["step"].tolist()
    table = pandas.read_csv(Path(result.path) / "progress.csv")
    assert table["step"].tolist() == frame["step"].tolist()
    for column in ("training_iteration", "iterations_since_restore", "time_total_s", "pid"):
        assert table[column].tolist() == pytest.approx(frame[column].tolist())
        assert [line[column] for line in lines] == pytest.approx(frame[column].tolist())
    assert frame["time_total_s"].is_monotonic_increasing


def restored(path: str | Path, **arguments: Any) -> DataParallelTrainer:
    """A trainer that goes on without anything going wrong."""
    arguments.setdefault("train_loop_config", {"steps": 8})
    return DataParallelTrainer.restore(path, train_loop_per_worker=count, **arguments)


def test_after_the_driver_was_killed_there_is_one_continuous_history(killed: Path) -> None:
    trial = killed
    before = Result.from_path(trial)
    assert before.status == "unfinished"
    assert before.metrics["step"] == 6
    assert before.metrics["done"] is False
    assert DataParallelTrainer.can_restore(trial)
    assert DataParallelTrainer.can_restore(trial.parent)
    result = restored(trial).fit()
    assert result.path == str(trial)
    assert_one_history(result, 8)
    assert result.attempts == 2
    assert result.status == "finished"
    assert result.metrics["trial_id"] == before.metrics["trial_id"]
    assert result.metrics_dataframe["iterations_since_restore"].tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert [checkpoint.number for checkpoint, _ in result.best_checkpoints] == [0, 1, 2, 3]
    assert Result.from_path(trial).metrics == result.metrics


def test_settings_are_taken_over_unless_they_are_given() -> None:
    def fails(config: dict[str, Any]) -> None:
        count({"steps": 4})
        raise ValueError("for good")

    settings = {"name": "experiment", "checkpoint_config": CheckpointConfig(num_to_keep=1)}
    failed = quick_trainer(fails, config={"steps": 8}, **settings).fit(raise_on_error=False)
    trial = Path(failed.path)
    trainer = restored(trial.parent)  # the experiment's directory will do
    assert trainer.scaling_config.num_workers == 2
    assert trainer.run_config.checkpoint_config.num_to_keep == 1
    assert trainer.run_config.name == "experiment"
    result = trainer.fit()
    assert_one_history(result, 8)
    assert result.error is None
    assert result.metrics_dataframe["iterations_since_restore"].tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert [path.name for path in trial.glob("checkpoint_*")] == ["checkpoint_000003"]


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_with_another_number_of_workers(killed: Path, workers: int) -> None:
    result = restored(killed, scaling_config=ScalingConfig(num_workers=workers)).fit()
    assert_one_history(result, 8)
    assert result.metrics_dataframe["size"].tolist() == [2] * 4 + [workers] * 4
    assert sorted(result.rank_metrics) == list(range(workers))
    assert Result.from_path(killed).rank_metrics == result.rank_metrics


def test_with_more_to_do_than_before(killed: Path) -> None:
    result = restored(killed, train_loop_config={"steps": 11}).fit()
    assert_one_history(result, 11)
    assert result.config == {"train_loop_config": {"steps": 11}}
    assert Result.from_path(killed).config == result.config


def test_a_run_that_had_nothing_left_to_do_keeps_its_metrics(killed: Path) -> None:
    """Killed after its last checkpoint: the restored attempt reports nothing."""
    result = restored(killed, train_loop_config={"steps": 4}).fit()
    assert_one_history(result, 4)
    assert result.metrics["step"] == 4
    assert result.rank_metrics == {rank: {"step": 4, "size": 2} for rank in (0, 1)}


def test_a_finished_run_gives_its_result_again() -> None:
    class Watching(Callback):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            self.seen.append("row")

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self.seen.append("complete")

    first = quick_trainer(count, inline=True, config={"steps": 4}).fit()
    files = {path: path.read_bytes() for path in Path(first.path).glob("*.*") if path.is_file()}
    watching = Watching()
    again = restored(
        first.path, train_loop_config={"steps": 4}, run_config=RunConfig(callbacks=[watching], verbose=0)
    ).fit()
    assert again.metrics == first.metrics
    assert again.checkpoint == first.checkpoint
    assert again.best_checkpoints == first.best_checkpoints
    assert again.rank_metrics == first.rank_metrics
    assert again.attempts == 1
    assert watching.seen == ["complete"]
    assert_one_history(again, 4)
    changed = [path.name for path, content in files.items() if path.read_bytes() != content]
    assert changed == []


def test_callbacks_hear_of_the_restore_and_of_the_new_rows_only(killed: Path) -> None:
    class Watching(Callback):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self.seen.append("start")

        def on_trial_restore(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self.seen.append(("restore", iteration))

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            self.seen.append(result["step"])

    watching = Watching()
    result = restored(killed, run_config=RunConfig(callbacks=[watching], verbose=0)).fit()
    assert watching.seen == ["start", ("restore", 4), 5, 6, 7, 8]
    assert_one_history(result, 8)


@pytest.mark.parametrize("form", ["path", "dict", "dict given again"])
def test_a_run_that_began_from_another_ones_checkpoint_begins_there_again(tmp_path: Path, form: str) -> None:
    """It failed before it had a checkpoint of its own."""

    def fails(config: dict[str, Any]) -> None:
        raise ValueError("at once")

    given = quick_trainer(count, inline=True, config={"steps": 4}).fit().checkpoint
    assert given is not None
    resume = given if form == "path" else Checkpoint.from_dict(given.to_dict())
    failed = quick_trainer(fails, inline=True, config={"steps": 6}, resume=resume).fit(raise_on_error=False)
    if form == "dict":
        with pytest.raises(RestoreError, match="resume_from_checkpoint="):
            restored(failed.path)
        return
    again = {"resume_from_checkpoint": resume} if form == "dict given again" else {}
    result = restored(failed.path, train_loop_config={"steps": 6}, **again).fit()
    check_run(result.path, result=result, iterations=2)
    assert result.metrics_dataframe["step"].tolist() == [5, 6]
    assert result.checkpoint is not None
    assert result.checkpoint.number == (2 if form == "path" else 0)


def test_a_run_with_checkpoints_of_its_own_does_not_need_the_first_one_any_more(tmp_path: Path) -> None:
    path = Checkpoint.from_dict({"step": 4}).to_directory(tmp_path / "first")

    def fails_later(config: dict[str, Any]) -> None:
        count({"steps": 6})
        raise ValueError("later")

    failed = quick_trainer(fails_later, inline=True, config={}, resume=path).fit(raise_on_error=False)
    shutil.rmtree(path)
    result = restored(failed.path).fit()
    assert result.metrics_dataframe["step"].tolist() == [5, 6, 7, 8]


# -- checkpoints in memory ----------------------------------------------------------------


@pytest.mark.slow
def test_checkpoints_in_memory_went_with_their_driver(tmp_path: Path) -> None:
    trial = the_trial(kill_a_run(tmp_path, num_to_keep=0))
    with pytest.raises(RestoreError, match="num_to_keep=0"):
        restored(trial).fit()
    with pytest.raises(RestoreError, match="num_to_keep=0"):  # other rules bring nothing back, and nothing is locked
        restored(trial, run_config=RunConfig(verbose=0)).fit()


def test_checkpoints_in_memory_of_a_failed_run_are_gone_too() -> None:
    def fails() -> None:
        session.report({}, checkpoint=Checkpoint.from_dict({}))
        raise ValueError

    in_memory = CheckpointConfig(num_to_keep=0)
    result = quick_trainer(fails, inline=True, checkpoint_config=in_memory).fit(raise_on_error=False)
    with pytest.raises(RestoreError, match="num_to_keep=0"):
        DataParallelTrainer.restore(result.path, train_loop_per_worker=fails).fit()


# -- refusals -----------------------------------------------------------------------------


def test_code_is_never_read_from_disk() -> None:
    path = quick_trainer(count, inline=True, config={"steps": 2}).fit().path
    with pytest.raises(RestoreError, match=r"restore\(.*train_loop_per_worker="):
        DataParallelTrainer.restore(path)


def test_a_config_that_is_no_plain_data_is_asked_for_again() -> None:
    def loop(config: dict[str, Any]) -> None:
        session.report({"steps": len(config["steps"])})

    path = quick_trainer(loop, inline=True, config={"steps": {1, 2}}).fit().path
    with pytest.raises(RestoreError, match="train_loop_config="):
        DataParallelTrainer.restore(path, train_loop_per_worker=loop)
    restored_trainer = DataParallelTrainer.restore(
        path, train_loop_per_worker=loop, train_loop_config={"steps": {1, 2}}
    )
    assert restored_trainer.fit().metrics["steps"] == 2


@pytest.mark.parametrize(("name", "told"), [(".", r"no journal\.jsonl"), ("nothing", "nothing does not exist")])
def test_where_there_is_no_run(tmp_path: Path, name: str, told: str) -> None:
    assert not DataParallelTrainer.can_restore(tmp_path / name)
    with pytest.raises(RestoreError, match=told):
        restored(tmp_path / name)


def test_a_damaged_sibling_does_not_block_the_others(killed: Path) -> None:
    damaged = killed.with_name("DataParallelTrainer_fffff_00000_0")
    damaged.mkdir()
    lines = (killed / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (damaged / "journal.jsonl").write_bytes(lines[0] + b"damage\n" + b"".join(lines[1:]))
    assert DataParallelTrainer.can_restore(killed.parent)
    with pytest.warns(UserWarning, match=f"{killed}.*{damaged.name}"):
        trainer = restored(killed.parent)
    assert trainer.to_run_spec().restore_path == str(killed)
    assert not DataParallelTrainer.can_restore(damaged)
    with pytest.raises(RestoreError, match=r"damaged at byte \d+"):
        restored(damaged)


def test_the_run_of_another_trainer() -> None:
    class OtherTrainer(BaseTrainer):
        def training_loop(self) -> None:
            session.report({})

    path = OtherTrainer(run_config=RunConfig(verbose=0, engine="inline")).fit().path
    with pytest.raises(RestoreError, match=r"OtherTrainer\.restore"):
        restored(path)
    assert OtherTrainer.restore(path).fit().metrics["training_iteration"] == 1


def test_a_second_driver_is_refused_while_the_first_is_at_work() -> None:
    """From within the first run's own callback: the same process, the same trial."""
    refused: list[str] = []

    class Restoring(Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            with pytest.raises(RunLockedError) as caught:
                restored(trial.local_path).fit()
            refused.append(str(caught.value))

    result = quick_trainer(count, inline=True, config={"steps": 2}, callbacks=[Restoring()]).fit()
    assert len(refused) == 2
    check_run(result.path, result=result, iterations=2, attempts=1)


# -- the same name again ------------------------------------------------------------------


def test_the_same_name_makes_another_trial_and_says_how_to_restore(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = {"name": "experiment", "storage_path": str(killed.parents[1])}
    again = quick_trainer(count, inline=True, config={"steps": 2}, **same, verbose=1).fit()
    assert Path(again.path).parent == killed.parent
    assert again.path != str(killed)
    printed = capsys.readouterr()
    shown = "".join((printed.out + printed.err).split())  # lines may be wrapped
    assert f"DataParallelTrainer.restore('{killed}'" in shown
    assert Result.from_path(killed).status == "unfinished"


def test_after_a_finished_run_of_the_same_name_there_is_nothing_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        quick_trainer(count, inline=True, config={"steps": 2}, name="experiment", verbose=1).fit()
    printed = capsys.readouterr()
    assert "restore(" not in printed.out + printed.err


def test_retries_after_a_restore_have_a_budget_of_their_own(killed: Path, tmp_path: Path) -> None:

    def flaky(config: dict[str, Any]) -> None:
        if session.get_world_rank() == 0 and Marks(config["marks"]).claim("failure"):
            raise ValueError("once")
        count(config)

    trainer = DataParallelTrainer.restore(
        killed,
        train_loop_per_worker=flaky,
        train_loop_config={"steps": 8, "marks": str(tmp_path / "marks")},
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), verbose=0),
    )
    result = trainer.fit()
    assert_one_history(result, 8)
    assert result.attempts == 3
