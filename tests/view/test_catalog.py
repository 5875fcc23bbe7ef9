"""What is found below a path: runs, searches with their trials, and what is wrong with the others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline import Secret, tune
from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import RestoreError
from paceline.storage.lock import RunLock
from paceline.train import DataParallelTrainer
from paceline.tune import TuneConfig, Tuner
from paceline.view.catalog import Found, find, run_facts
from tests.ordinary import output_of


def steps(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    for step in range((checkpoint.to_dict()["step"] if checkpoint else 0) + 1, 7):
        saved = Checkpoint.from_dict({"step": step}) if step % 2 == 0 else None
        session.report({"loss": 1 / step}, checkpoint=saved)
        if step == config.get("fails_at"):
            raise ValueError(f"step {step} failed")


def fit(root: Path, name: str, max_failures: int = 0, **config: Any) -> Path:
    trainer = DataParallelTrainer(
        steps,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            name=name,
            storage_path=str(root),
            verbose=0,
            engine="inline",
            failure_config=FailureConfig(max_failures=max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss"),
        ),
    )
    return Path(trainer.fit(raise_on_error=False).path)


def search(root: Path, name: str) -> Path:
    tuner = Tuner(
        lambda config: session.report({"score": config["x"]}),
        param_space={"x": tune.grid_search([1, 3, 2])},
        tune_config=TuneConfig(metric="score", mode="max", max_concurrent_trials=1),
        run_config=RunConfig(name=name, storage_path=str(root), verbose=0, engine="inline"),
    )
    return Path(str(tuner.fit().experiment_path))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a failed run of the same experiment, another run, and a search, in this order."""
    root = tmp_path_factory.mktemp("results")
    fit(root, "first")
    fit(root, "first", fails_at=3)
    fit(root, "second", max_failures=1, fails_at=5)
    search(root, "search")
    return root


@pytest.fixture
def results(original: Path, tmp_path: Path) -> Path:
    """A copy, for tests that damage it."""
    return Path(shutil.copytree(original, tmp_path / "results", symlinks=True))


def names(found: Found) -> list[tuple[str, str]]:
    return [(run.name, run.status) for run in found.runs]


def runs_of(results: Path, experiment: str) -> list[Path]:
    return [journal.parent for journal in sorted((results / experiment).glob("*/journal.jsonl"))]


class TestFind:
    def test_a_results_directory(self, original: Path) -> None:
        found = find(original)
        assert names(found) == [("second", "failed"), ("first", "failed"), ("first", "finished")], "newest first"
        (searched,) = found.searches
        assert (searched.name, searched.status, len(searched.trials)) == ("search", "finished", 3)
        assert searched.best is not None
        assert searched.best.params == {"x": 3}
        assert found.problems == []

    def test_an_experiment_a_run_a_search_a_trial(self, original: Path) -> None:
        assert names(find(original / "first")) == [("first", "failed"), ("first", "finished")]
        path = find(original / "second").runs[0].path
        assert names(find(path)) == [("second", "failed")]
        found = find(str(original / "search"))
        assert [len(each.trials) for each in found.searches] == [3]
        assert found.runs == []
        trial = found.searches[0].trials[1]
        assert [run.trial_id for run in find(trial.path).runs] == [trial.trial_id]

    def test_relative_paths_and_file_uris(self, original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(original)
        assert find(".") == find(original) == find(f"file://{original}")

    def test_a_run_in_the_directory_of_a_search(self, results: Path) -> None:
        (run,) = runs_of(results, "second")
        shutil.move(run, results / "search" / "another")
        shutil.rmtree(results / "second")
        found = find(results / "search")
        assert names(found) == [("second", "failed")]
        assert [len(each.trials) for each in found.searches] == [3]

    def test_two_searches_in_one_directory(self, results: Path) -> None:
        search(results, "search")
        found = find(results / "search")
        assert [len(each.trials) for each in found.searches] == [3, 3]
        assert found.searches[0].started > found.searches[1].started
        assert found.runs == []

    def test_links(self, results: Path, tmp_path: Path) -> None:
        expected = names(find(results))
        (results / "latest").symlink_to("second")
        (results / "loop").symlink_to(".")
        (results / "nowhere").symlink_to("gone")
        assert names(find(results)) == expected, "nothing is shown twice"
        shutil.move(results / "second", tmp_path / "other-disk")
        (results / "second").symlink_to(tmp_path / "other-disk")
        assert names(find(results)) == expected

    def test_what_is_put_aside_or_hidden(self, results: Path) -> None:
        expected = names(find(results))
        (run,) = runs_of(results, "second")
        shutil.copytree(run, run.with_name(f"{run.name}.corrupt"))
        shutil.copytree(run, run.with_name(".trash"))
        shutil.copytree(run, results / "copy")
        shutil.move(results / "copy", run / "rank_0" / "run")
        assert names(find(results)) == expected

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(RestoreError, match="does not exist"):
            find(tmp_path / "gone")
        with pytest.raises(RestoreError, match="holds no runs"):
            find(tmp_path)
        (tmp_path / "file").touch()
        with pytest.raises(RestoreError, match="is a file"):
            find(tmp_path / "file")
        (tmp_path / "a" / "b" / "c").mkdir(parents=True)
        with pytest.raises(RestoreError, match="holds no runs"):
            find(tmp_path)

    def test_looking_changes_nothing(self, original: Path) -> None:
        before = {file: os.stat(file).st_mtime_ns for file in original.rglob("*")}
        find(original)
        for run in find(original).runs:
            run_facts(run.path)
        assert {file: os.stat(file).st_mtime_ns for file in original.rglob("*")} == before


class TestProblems:
    def test_a_damaged_run_does_not_hide_the_others(self, results: Path) -> None:
        (run,) = runs_of(results, "second")
        journal = run / "journal.jsonl"
        journal.write_bytes(journal.read_bytes().replace(b'"kind":"run"', b'"kind":"rum"', 1))
        found = find(results)
        assert len(found.runs) == 2
        (problem,) = found.problems
        assert problem.damaged
        assert problem.path == str(run)
        assert "damaged at byte 0" in problem.message
        assert find(run).problems == [problem], "nor is it nothing"

    def test_a_damaged_search(self, results: Path) -> None:
        (journal,) = (results / "search").glob("experiment-*.jsonl")
        journal.write_bytes(b"not a journal\n")
        found = find(results)
        assert [problem.path for problem in found.problems] == [str(journal)]
        assert found.problems[0].damaged
        assert len(found.runs) == 3 + 3, "its trials can still be seen"

    def test_a_run_of_a_newer_version(self, results: Path) -> None:
        from paceline.storage.journal import Journal

        journal = runs_of(results, "second")[0] / "journal.jsonl"
        journal.unlink()
        newer = Journal(journal)
        newer.append({"kind": "run", "version": 99})
        newer.close()
        (problem,) = find(results).problems
        assert not problem.damaged
        assert "newer version" in problem.message

    def test_a_run_that_has_not_begun(self, results: Path) -> None:
        new = results / "third" / "run"
        new.mkdir(parents=True)
        (new / "journal.jsonl").touch()
        (problem,) = find(results).problems
        assert not problem.damaged
        assert "killed before it began" in problem.message
        with RunLock(new / "lock"):
            (problem,) = find(results).problems
            assert "has not begun yet" in problem.message

    def test_a_directory_that_may_not_be_read(self, results: Path) -> None:
        code = "import sys; from paceline.view.catalog import find; print(find(sys.argv[1]).problems)"
        (results / "second").chmod(0)
        try:
            shown = output_of(code, str(results))
        finally:
            (results / "second").chmod(0o700)
        assert f"[Problem(path={str(results / 'second')!r}" in shown
        assert "damaged=False" in shown
        assert shown.count("Problem(") == 1

    def test_trials_that_a_search_does_not_know(self, results: Path) -> None:
        """Its journal was cut short; or it is at work, and the record follows in a moment."""
        (journal,) = (results / "search").glob("experiment-*.jsonl")
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(line for line in lines if b'"n":2' not in line))
        assert [run.trial_id[-5:] for run in find(results / "search").runs] == ["00002"]
        with RunLock(journal.with_suffix(".lock")):
            assert find(results / "search").runs == []


class TestFacts:
    def test_a_finished_run(self, original: Path) -> None:
        path = find(original / "first").runs[1].path
        facts = run_facts(path)
        assert facts.summary == find(path).runs[0]
        assert facts.config == {"train_loop_config": {}} or facts.config == {}
        assert facts.settings["scaling_config"]["num_workers"] == 1
        assert [attempt.attempt for attempt in facts.attempts] == [0]
        assert (facts.failures, facts.how_to_continue) == ([], "")
        assert (facts.search, facts.origin) == (None, "")
        assert facts.code is not None
        assert "steps" in facts.code["functions"]
        assert (facts.score_attribute, facts.score_order) == ("loss", "max")
        first, second, third = facts.checkpoints
        assert [(each.number, each.iteration, each.score) for each in facts.checkpoints] == [
            (0, 2, 1 / 2), (1, 4, 1 / 4), (2, 6, 1 / 6)
        ]  # fmt: skip
        assert first.kept
        assert first.size > 0
        assert first.path == f"{path}/checkpoint_000000"
        assert 0 < first.time <= second.time <= third.time
        assert first.metrics == {"loss": 1 / 2}

    def test_a_failed_run(self, original: Path) -> None:
        path = find(original / "second").runs[0].path
        facts = run_facts(path)
        assert len(facts.attempts) == 2
        assert [failure.rank for failure in facts.failures] == [0, 0]
        assert "ValueError: step 5 failed" in facts.failures[0].message
        assert "steps" in facts.failures[0].traceback
        assert 0 < facts.failures[0].time <= facts.failures[1].time
        assert facts.how_to_continue.startswith("DataParallelTrainer.restore(")
        assert path in facts.how_to_continue

    def test_checkpoints_that_are_gone(self, results: Path) -> None:
        (path,) = runs_of(results, "second")
        kept = [each for each in run_facts(path).checkpoints if each.kept]
        shutil.rmtree(kept[-1].path)
        facts = run_facts(path)
        assert [each.number for each in facts.checkpoints if each.kept] == [each.number for each in kept[:-1]]
        assert any(f"checkpoint_{kept[-1].number:06d}" in warning for warning in facts.warnings)

    def test_a_trial(self, original: Path) -> None:
        (searched,) = find(original / "search").searches
        facts = run_facts(searched.trials[0].path)
        assert facts.search == str(original / "search")
        assert facts.how_to_continue == ""

    def test_a_trial_of_a_killed_search(self, results: Path) -> None:
        trial = find(results / "search").searches[0].trials[0].path
        journal = Path(trial, "journal.jsonl")
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(line for line in lines if b'"kind":"end"' not in line))
        facts = run_facts(trial)
        assert facts.summary.status == "killed"
        assert facts.how_to_continue.startswith("Tuner.restore(")

    def test_secrets_stay_masked(self, tmp_path: Path) -> None:
        facts = run_facts(fit(tmp_path, "secret", api_key=Secret("do-not-show")))
        assert "do-not-show" not in repr(facts)

    def test_no_run_there(self, tmp_path: Path) -> None:
        with pytest.raises(RestoreError, match="holds no run"):
            run_facts(tmp_path)
