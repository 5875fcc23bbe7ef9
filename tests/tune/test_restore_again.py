"""An experiment that is restored more than once, and which experiment it is that is restored."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, RunConfig, session
from paceline.air.errors import ConfigError
from paceline.run.trial import Trial
from paceline.storage.shared_sync import SharedSync
from paceline.testing.chaos import Marks
from paceline.testing.tune_invariants import experiment_journal, experiment_records
from paceline.tune import Callback, TuneConfig, Tuner, grid_search
from paceline.tune.experiment.place import newest_journal
from paceline.tune.experiment.records import ExperimentJournal
from paceline.tune.schedulers import ASHAScheduler, FIFOScheduler
from paceline.tune.schedulers.trial_scheduler import Controller, Decision, Restart, TrialScheduler
from paceline.tune.search import BasicVariantGenerator, ConcurrencyLimiter
from tests.tune.counting import count
from tests.tune.interrupting import Bench, InterruptAt, facts
from tests.tune.searching import tuner


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def drop_from(journal: Path, kind: str) -> None:
    """Take away the first record of that kind and all behind it."""
    lines = journal.read_bytes().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if b'"kind":"%b"' % kind.encode() in line)
    journal.write_bytes(b"".join(lines[:first]))


# -- trials that a restore leaves as they are -----------------------------------------------


@pytest.mark.parametrize("status", ["interrupted", "unfinished"])
def test_trials_that_were_left_can_be_continued_later(bench: Bench, status: str) -> None:
    grid = bench.interrupted(at=1, max_concurrent_trials=1)
    reached = facts(grid)[1]
    assert 1 <= reached["rows"] < 3
    if status == "unfinished":
        drop_from(Path(grid.outcomes[1].path) / "journal.jsonl", kind="end")  # as if the driver had been killed
    left = Tuner.restore(grid.experiment_path, count, resume_unfinished=False)
    for results in (left.fit(), Tuner.restore(grid.experiment_path, count).get_results()):
        assert [each["status"] for each in facts(results)] == ["finished", status, "finished", "finished"]
        assert facts(results)[1]["rows"] == reached["rows"]
        assert results.outcomes[1].metrics["done"] == (status == "interrupted")
        assert not results.errors
    before = len(bench.starts())
    continued = facts(Tuner.restore(grid.experiment_path, count).fit())
    assert [each["status"] for each in continued] == ["finished"] * 4
    assert [each["rows"] for each in continued] == [3] * 4
    assert bench.starts()[before:] == [(reached["id"], reached["checkpoint"]["step"])]


class Noting(BasicVariantGenerator):
    """Notes how far each trial had come when it was over."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, int | None] = {}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        number = trial_id[-1:]
        assert number not in self.ends
        self.ends[number] = result["training_iteration"] if result else None
        super().on_trial_complete(trial_id, result, error)


@pytest.mark.parametrize("leave", [True, False])
def test_searcher_neither_waits_for_trials_that_are_left_nor_takes_them_for_finished(bench: Bench, leave: bool) -> None:
    searcher = Noting()
    grid = bench.interrupted(at=1, search_alg=ConcurrencyLimiter(Noting(), max_concurrent=1))
    settings = TuneConfig(search_alg=ConcurrencyLimiter(searcher, max_concurrent=1))
    Tuner.restore(grid.experiment_path, count, resume_unfinished=not leave, tune_config=settings).fit()
    assert searcher.ends == {"0": 3, "1": None if leave else 3, "2": 3, "3": 3}


# -- which experiment -------------------------------------------------------------------------


def test_newest_of_several_experiments_is_told_by_their_journals(bench: Bench) -> None:
    """Copies have other times, in any order."""
    path = Path(bench.tuner(num_samples=1).fit().experiment_path)
    (first,) = path.glob("experiment-*.jsonl")
    bench.tuner(num_samples=2).fit()
    ahead = first.stat().st_mtime + 1000
    os.utime(first, (ahead, ahead))
    assert len(Tuner.restore(path, count).get_results()) == 2


def test_experiment_that_was_killed_after_many_rows_has_its_time_at_the_beginning(tmp_path: Path) -> None:
    sync = SharedSync()
    for name, rows in (("short", 1), ("long", 3000)):
        journal = ExperimentJournal(tmp_path / f"experiment-{name}.jsonl", sync)
        journal.header({})
        for index in range(rows):
            journal.row(0, index, {"text": "x" * 100}, None)
        journal.close()
    sync.close()
    os.utime(tmp_path / "experiment-long.jsonl", (0, 0))
    assert newest_journal(tmp_path).name == "experiment-long.jsonl"


def test_experiment_of_which_nothing_was_written_is_passed_over(bench: Bench) -> None:
    path = Path(bench.tuner(num_samples=1).fit().experiment_path)
    empty = path / "experiment-empty.jsonl"
    empty.touch()
    ahead = empty.stat().st_mtime + 1000
    os.utime(empty, (ahead, ahead))
    assert len(Tuner.restore(path, count).get_results()) == 1


# -- what an earlier restore was given --------------------------------------------------------


@pytest.mark.parametrize("what", ["stop", "scheduler"])
def test_settings_of_a_restore_hold_for_the_next(bench: Bench, what: str) -> None:
    grid = bench.interrupted(at=1, max_concurrent_trials=1)
    run_config = RunConfig(
        callbacks=[InterruptAt(2)], verbose=0, stop={"training_iteration": 2} if what == "stop" else None
    )
    settings = TuneConfig(
        scheduler=ASHAScheduler(max_t=2, grace_period=2) if what == "scheduler" else None, num_samples=5
    )
    with pytest.raises(KeyboardInterrupt):
        Tuner.restore(grid.experiment_path, count, run_config=run_config, tune_config=settings).fit()
    restored = facts(Tuner.restore(grid.experiment_path, count).fit())
    assert [each["rows"] for each in restored] == [3, 2, 2, 2, 2]


class Broken(FIFOScheduler):
    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        raise RuntimeError("broken")


def test_settings_with_which_a_restore_fails_do_not_hold_for_the_next(bench: Bench) -> None:
    grid = bench.interrupted(at=1)
    before = experiment_records(grid.experiment_path)
    with pytest.raises(RuntimeError, match="broken"):
        Tuner.restore(grid.experiment_path, count, tune_config=TuneConfig(scheduler=Broken())).fit()
    assert experiment_records(grid.experiment_path) == before
    assert [each["rows"] for each in facts(Tuner.restore(grid.experiment_path, count).fit())] == [3] * 4


def test_callbacks_that_are_not_given_again_are_mentioned_each_time(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    search = bench.tuner(callbacks=[Callback()], num_samples=1)
    search._run_config.verbose = 1
    grid = search.fit()
    for _ in range(2):
        capfd.readouterr()
        Tuner.restore(grid.experiment_path, count).fit()
        assert "had callbacks, which restore() cannot bring back" in " ".join("".join(capfd.readouterr()).split())


# -- the same Tuner once more -----------------------------------------------------------------


class ToldOnce(FIFOScheduler):
    """Must not hear of a trial twice."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[str] = set()

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        assert trial.trial_id not in self.known
        self.known.add(trial.trial_id)


def test_restored_tuner_can_go_on_after_an_interruption(bench: Bench) -> None:
    grid = bench.interrupted(at=1, scheduler=ToldOnce())
    restored = Tuner.restore(
        grid.experiment_path,
        count,
        tune_config=TuneConfig(scheduler=ToldOnce()),
        run_config=RunConfig(callbacks=[InterruptAt(2)], verbose=0),
    )
    with pytest.raises(KeyboardInterrupt):
        restored.fit()
    assert [each["rows"] for each in facts(restored.fit())] == [3] * 4
    assert [each["rows"] for each in facts(restored.fit())] == [3] * 4


def test_searcher_object_of_a_restored_tuner_serves_once(bench: Bench) -> None:
    grid = bench.interrupted(at=1, search_alg=Noting())
    restored = Tuner.restore(grid.experiment_path, count, tune_config=TuneConfig(search_alg=Noting()))
    restored.fit()
    with pytest.raises(ConfigError, match="has searched already"):
        restored.fit()


# -- configurations with objects in them ------------------------------------------------------


class Kind:
    """Has no plain form."""


class ChangesFirst(TrialScheduler):
    """The first trial gets another x: at once after its first row, or when all wait. Then the driver breaks off."""

    def __init__(self, when: str, breaks_off: bool, **more: Any) -> None:
        super().__init__()
        self._when = when
        self._breaks_off = breaks_off
        self._more = more

    @property
    def result_keys(self) -> tuple[str, ...]:
        return ("x",)

    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        first = trial is controller.get_trials()[0]
        if result["training_iteration"] == 1:
            if self._when == "stall":
                return self.PAUSE
            return self._change(trial) if first else self.CONTINUE
        if first and self._breaks_off:
            raise RuntimeError("broken off")
        return self.CONTINUE

    def _change(self, trial: Trial) -> Restart:
        return Restart({**trial.config, "x": 7, "added": {"y": 8}, **self._more})

    def on_stall(self, controller: Controller) -> None:
        if self._breaks_off:
            controller.restart_trial(controller.get_trials()[0], self._change(controller.get_trials()[0]))
            raise RuntimeError("broken off")

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        states = ("PENDING",) if self._when == "stall" and self._breaks_off else ("PENDING", "PAUSED")
        return next((each for each in controller.waiting_trials() if each.status in states), None)


def three_rows(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    for step in range(checkpoint.to_dict()["step"] if checkpoint else 0, 3):
        row = {"x": config["x"], "y": config.get("added", {}).get("y"), "kind": config["kind"].__name__}
        session.report(row, checkpoint=Checkpoint.from_dict({"step": step + 1}))


def changed_and_broken_off(place: Path, when: str, **more: Any) -> dict[str, Any]:
    """The space of a search that broke off when its scheduler had changed the first trial."""
    space = {"kind": Kind, "x": grid_search([1, 2])}
    scheduler = ChangesFirst(when, True, **more)
    search = tuner(
        three_rows, space, scheduler=scheduler, max_concurrent_trials=1, storage_path=str(place), name="search"
    )
    with pytest.raises(RuntimeError, match="broken off"):
        search.fit()
    return space


@pytest.mark.parametrize("when", ["row", "stall"])
def test_changed_configuration_survives_the_driver_whatever_is_in_it(tmp_path: Path, when: str) -> None:
    space = changed_and_broken_off(tmp_path, when)
    settings = TuneConfig(scheduler=ChangesFirst(when, False))
    search = Tuner.restore(tmp_path / "search", three_rows, param_space=space, tune_config=settings)
    if when == "row":
        assert search.get_results().outcomes[0].trial.config == {"x": 7, "added": {"y": 8}}
    grid = search.fit()
    assert not grid.errors
    last = [(result.metrics["x"], result.metrics["y"], result.metrics["kind"]) for result in grid]
    assert last == [(7, 8, "Kind"), (2, None, "Kind")]
    assert grid.outcomes[0].trial.config == {"kind": Kind, "x": 7, "added": {"y": 8}}


def test_change_that_could_not_be_written_down_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    space = changed_and_broken_off(tmp_path, "row", kind=Bench)
    capfd.readouterr()
    settings = TuneConfig(scheduler=ChangesFirst("row", False))
    grid = Tuner.restore(
        tmp_path / "search", three_rows, param_space=space, tune_config=settings, run_config=RunConfig(verbose=1)
    ).fit()
    assert not grid.errors
    assert grid[0].metrics["kind"] == "Kind"
    told = " ".join("".join(capfd.readouterr()).split())
    assert "keeps the parameters that it had before" in told
    assert "parameter 'kind'" in told


# -- files of trials --------------------------------------------------------------------------


def test_results_of_trials_whose_files_are_gone_or_damaged(bench: Bench) -> None:
    grid = bench.tuner(num_samples=2).fit()
    gone, damaged = (Path(outcome.path) for outcome in grid.outcomes)
    shutil.rmtree(gone)
    journal = damaged / "journal.jsonl"
    journal.write_bytes(b"x" + journal.read_bytes()[1:])
    restored = Tuner.restore(grid.experiment_path, count)
    for results in (restored.get_results(), restored.fit()):
        first, second = results.outcomes
        assert first.metrics["training_iteration"] == second.metrics["training_iteration"] == 3
        assert first.result.status == "finished"
        assert first.result.checkpoint is None
        assert second.result.metrics["training_iteration"] == 3
        assert "damaged" in second.result.warnings[0]


class StopsOthers(TrialScheduler):
    """The second trial waits after its row, and is stopped at the end of the first; there the driver breaks off."""

    def __init__(self, marks: Marks, breaks_off: bool) -> None:
        super().__init__()
        self._marks = marks
        self._breaks_off = breaks_off

    def __deepcopy__(self, memo: Any) -> StopsOthers:
        return StopsOthers(self._marks, self._breaks_off)

    @property
    def result_keys(self) -> tuple[str, ...]:
        return ("x",)

    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        if result["x"] == 1:
            return self.CONTINUE
        self._marks.say("waits")
        return self.PAUSE

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        return next((each for each in controller.waiting_trials() if each.status == "PENDING"), None)

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> None:
        if self._breaks_off:
            raise RuntimeError("broken off")
        for each in controller.waiting_trials():
            controller.stop_trial(each)


def test_trial_that_is_stopped_by_an_end_that_was_not_written_down_keeps_its_rows(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")

    def train(config: dict[str, Any]) -> None:
        if config["x"] == 1:
            marks.wait("waits", 1)
        session.report({"x": config["x"], "accuracy": 0.5})

    space = {"x": grid_search([1, 2])}
    search = tuner(train, space, scheduler=StopsOthers(marks, True), storage_path=str(tmp_path), name="search")
    with pytest.raises(RuntimeError, match="broken off"):
        search.fit()
    journal = experiment_journal(tmp_path / "search")
    drop_from(journal, kind="end")
    settings = TuneConfig(scheduler=StopsOthers(marks, False))
    grid = Tuner.restore(tmp_path / "search", train, tune_config=settings).fit()
    assert [outcome.status for outcome in grid.outcomes] == ["finished", "finished"]
    assert [outcome.metrics["accuracy"] for outcome in grid.outcomes] == [0.5, 0.5]
    assert [len(outcome.rows()) for outcome in grid.outcomes] == [1, 1]
