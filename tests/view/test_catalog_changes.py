"""A catalog that is looked at again and again: what has changed, and that nothing else is read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.run.records import FORMAT as RUN_FORMAT
from paceline.run.records import AttemptStarted, CheckpointCommitted, Ended, Header, Reached, Row
from paceline.run.run_summary import RunSummary
from paceline.storage.journal import Journal
from paceline.storage.lock import RunLock
from paceline.tune.experiment.records import FORMAT as SEARCH_FORMAT
from paceline.tune.experiment.records import SearchLeft, SearchStarted, TrialAgain, TrialCreated, TrialEnded
from paceline.view.catalog import Catalog, Changes, Entry, Problem
from paceline.view.page.listing import Listing
from paceline.view.places import LocalPlace
from paceline.view.watched import LocalRun
from tests.view import journals

SETTINGS = {
    "config": {},
    "run_config": {"checkpoint_config": {}, "failure_config": {}},
    "scaling_config": {"num_workers": 2},
}


class WrittenRun:
    """A run as its driver writes it."""

    def __init__(self, path: Path, trial_id: str = "abcde_00000") -> None:
        path.mkdir(parents=True)
        self.path = path
        self.lock = RunLock(path / "lock")
        self.lock.acquire()
        self.journal = Journal(path / "journal.jsonl")
        self.write(
            Header(
                trainer="Trainer", experiment_name=path.parent.name, trial_id=trial_id, experiment_id="e",
                experiment_tag="", settings=SETTINGS, time=1000.0,
            ),
            AttemptStarted(attempt=0, time=1001.0),
        )  # fmt: skip
        self.index = 0

    def write(self, *records: Any) -> None:
        for record in records:
            self.journal.append(record)
        self.journal.flush()

    def report(self, loss: float) -> None:
        self.index += 1
        for rank in (0, 1):
            metrics = {"loss": loss, "rank": rank}
            self.write(Row(attempt=0, index=self.index, rank=rank, stamp=1.0, elapsed=2.0, metrics=metrics))

    def end(self, status: Any = "finished") -> None:
        self.write(Ended(status=status, time=1100.0, reached=Reached(iteration=self.index)))
        self.kill()

    def kill(self) -> None:
        self.journal.close()
        self.lock.release()


class WrittenSearch:
    """A search as its driver writes it."""

    def __init__(self, path: Path, id: str = "abcde12345") -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path, self.id = path, id
        self.file = path / f"experiment-{id[:5]}.jsonl"
        self.lock = RunLock(self.file.with_suffix(".lock"))
        self.lock.acquire()
        self.journal = Journal(self.file)
        facts = {"id": id, "name": path.name, "trainable": "f", "seed": 1, "run": {}, "metric": "loss", "mode": "min"}
        self.write(SearchStarted(**facts, time=1000.0))
        self.trials = 0

    def write(self, *records: Any) -> None:
        for record in records:
            self.journal.append(record)
        self.journal.flush()

    def create(self) -> str:
        id = f"{self.id[:5]}_{self.trials:05d}"
        self.write(TrialCreated(n=self.trials, id=id, dir=f"f_{id}", evaluated={"x": self.trials}, time=1001.0))
        self.trials += 1
        return id

    def kill(self) -> None:
        self.journal.close()
        self.lock.release()


def said(changes: Changes) -> list[tuple[str, str]]:
    """(kind, status) of what has changed."""
    return sorted((entry.kind, getattr(entry.summary, "status", "")) for entry in changes.changed)


def only(changes: Changes) -> Entry:
    (entry,) = changes.changed
    return entry


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From here on, whoever decodes a record fails."""

    def forbid() -> None:
        def decode(*_: Any) -> None:
            raise AssertionError("a record was read")

        monkeypatch.setattr(RUN_FORMAT, "decode", decode)
        monkeypatch.setattr(SEARCH_FORMAT, "decode", decode)

    return forbid


class TestRuns:
    def test_a_run_from_its_beginning_to_its_end(self, root: Path) -> None:
        catalog = Catalog(root)
        assert catalog.refresh() == Changes()
        run = WrittenRun(root / "experiment" / "run")
        first = only(catalog.refresh())
        assert (first.kind, first.parent, len(first.id), first.summary.status) == ("run", None, 12, "running")
        assert catalog.refresh() == Changes()
        run.report(0.5)
        second = only(catalog.refresh())
        assert second.id == first.id
        assert second.summary.reached.metrics == {"loss": 0.5, "rank": 0}
        run.report(0.25)
        run.write(CheckpointCommitted(number=0, iteration=2, size=10))
        assert only(catalog.refresh()).summary.reached == Reached(
            iteration=2,
            time_total_s=2.0,
            attempts=1,
            world_size=1,
            metrics={"loss": 0.25, "rank": 0},
            checkpoints=[0],
            size=10,
        )
        run.end()
        assert said(catalog.refresh()) == [("run", "finished")]
        assert catalog.refresh() == Changes()
        assert catalog.place(first.id) == str(run.path)
        shutil.rmtree(run.path)
        assert catalog.refresh() == Changes(removed=[first.id])
        with pytest.raises(KeyError):
            catalog.place(first.id)

    def test_a_driver_that_is_killed(self, root: Path) -> None:
        run = WrittenRun(root / "experiment" / "run")
        catalog = Catalog(root)
        catalog.refresh()
        run.kill()
        assert said(catalog.refresh()) == [("run", "killed")]

    def test_a_run_that_is_continued(self, root: Path) -> None:
        run = WrittenRun(root / "experiment" / "run")
        run.report(1.0)
        run.end("interrupted")
        catalog = Catalog(root)
        assert said(catalog.refresh()) == [("run", "interrupted")]
        with RunLock(run.path / "lock"):
            journal = Journal(run.path / "journal.jsonl")
            journal.append(AttemptStarted(attempt=1, start_index=1))
            journal.flush()
            assert said(catalog.refresh()) == [("run", "running")]
            journal.close()
        assert said(catalog.refresh()) == [("run", "killed")]

    def test_the_root_is_the_run(self, root: Path) -> None:
        run = WrittenRun(root / "run")
        catalog = Catalog(run.path)
        entry = only(catalog.refresh())
        assert catalog.place(entry.id) == str(run.path)
        run.report(1.0)
        assert said(catalog.refresh()) == [("run", "running")]
        run.end()

    def test_a_run_at_the_root_and_one_below(self, root: Path) -> None:
        catalog = Catalog(root)
        (root / "new").mkdir()
        catalog.refresh()
        shutil.rmtree(root / "new")
        runs = [WrittenRun(root / "new"), WrittenRun(root / "experiment" / "run")]
        assert said(catalog.refresh()) == [("run", "running")] * 2
        for run in runs:
            run.end()
        assert said(catalog.refresh()) == [("run", "finished")] * 2

    def test_what_has_not_begun_and_what_is_damaged(self, root: Path) -> None:
        catalog = Catalog(root)
        path = root / "experiment" / "run"
        path.mkdir(parents=True)
        (path / "journal.jsonl").touch()
        with RunLock(path / "lock"):
            assert "has not begun" in only(catalog.refresh()).summary.message
        assert "killed before it began" in only(catalog.refresh()).summary.message
        (path / "journal.jsonl").write_text("something else\n")
        entry = only(catalog.refresh())
        assert (entry.kind, entry.summary.damaged) == ("damaged", True)
        assert catalog.refresh() == Changes()
        shutil.rmtree(path)
        WrittenRun(path).end()
        again = only(catalog.refresh())
        assert (again.id, again.kind) == (entry.id, "run")

    def test_nothing_is_read_where_nothing_has_changed(self, root: Path, nothing_is_read: Any) -> None:
        for number in range(3):
            WrittenRun(root / "experiment" / f"run_{number}").end()
        live = WrittenRun(root / "other" / "live")
        catalog = Catalog(root)
        assert len(catalog.refresh().changed) == 4
        nothing_is_read()
        assert catalog.refresh() == Changes()
        live.kill()

    def test_of_many_that_have_ended_some_are_looked_at_each_time(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(LocalPlace, "share", 2)
        runs = [WrittenRun(root / "experiment" / f"run_{number}") for number in range(9)]
        live = WrittenRun(root / "experiment" / "live")
        for run in runs:
            run.end("failed")
        catalog = Catalog(root)
        assert len(catalog.refresh().changed) == 10
        for run in runs:
            journal = Journal(run.path / "journal.jsonl")
            journal.append(Ended(status="finished"))
            journal.close()
        live.report(1.0)
        noticed = [catalog.refresh().changed for _ in range(5)]
        assert all(len(changed) <= 4 for changed in noticed)
        assert sum(map(len, noticed)) == 10
        live.end()
        assert said(catalog.refresh()) == [("run", "finished")]


class TestSearches:
    def test_trials_come_and_end(self, root: Path) -> None:
        search = WrittenSearch(root / "search")
        catalog = Catalog(root)
        entry = only(catalog.refresh())
        assert (entry.kind, entry.summary.status) == ("search", "running")
        id = search.create()
        assert said(catalog.refresh()) == [("search", "running"), ("trial", "pending")]
        run = WrittenRun(root / "search" / f"f_{id}", id)
        changed = catalog.refresh()
        assert said(changed) == [("search", "running"), ("trial", "running")]
        assert [each.parent for each in changed.changed if each.kind == "trial"] == [entry.id]
        assert catalog.refresh() == Changes()
        run.report(0.5)
        changed = catalog.refresh()
        assert said(changed) == [("search", "running"), ("trial", "running")]
        (trial,) = [each for each in changed.changed if each.kind == "trial"]
        assert trial.summary.reached.metrics["loss"] == 0.5
        assert trial.summary.params == {"x": 0}
        run.end()
        search.write(TrialEnded(n=0, status="finished", metrics={"loss": 0.5, "training_iteration": 1}, time=1050.0))
        changed = catalog.refresh()
        assert said(changed) == [("search", "running"), ("trial", "finished")]
        assert [each.summary.best.number for each in changed.changed if each.kind == "search"] == [0]
        search.write(SearchLeft(status="finished", time=1060.0))
        search.kill()
        assert said(catalog.refresh()) == [("search", "finished")]
        assert catalog.refresh() == Changes()
        assert catalog.place(entry.id) == str(root / "search")
        assert catalog.place(trial.id) == str(run.path)
        shutil.rmtree(root / "search")
        assert sorted(catalog.refresh().removed) == sorted([entry.id, trial.id])

    def test_a_driver_that_is_killed(self, root: Path) -> None:
        search = WrittenSearch(root / "search")
        run = WrittenRun(root / "search" / f"f_{(id := search.create())}", id)
        catalog = Catalog(root)
        catalog.refresh()
        run.kill()
        search.kill()
        assert said(catalog.refresh()) == [("search", "killed"), ("trial", "killed")]

    def test_a_trial_that_the_journal_does_not_name_yet(self, root: Path) -> None:
        search = WrittenSearch(root / "search")
        run = WrittenRun(root / "search" / "f_abcde_00000", "abcde_00000")
        catalog = Catalog(root)
        assert said(catalog.refresh()) == [("search", "running")]
        search.create()
        assert said(catalog.refresh()) == [("search", "running"), ("trial", "running")]
        run.end()
        search.kill()

    def test_a_trial_that_begins_again_elsewhere(self, root: Path) -> None:
        search = WrittenSearch(root / "search")
        id = search.create()
        search.write(TrialEnded(n=0, status="failed", error="it broke"))
        catalog = Catalog(root)
        before = [entry.id for entry in catalog.refresh().changed if entry.kind == "trial"]
        search.write(TrialAgain(n=0, dir=f"f_{id}_again1"))
        changed = catalog.refresh()
        assert said(changed) == [("search", "running"), ("trial", "pending")]
        assert changed.removed == before
        search.kill()

    def test_two_searches_in_one_directory(self, root: Path) -> None:
        searches = [WrittenSearch(root / "search", id) for id in ("abcde11111", "fghij22222")]
        for search in searches:
            search.create()
        catalog = Catalog(root / "search")
        entries = catalog.refresh().changed
        assert len({entry.id for entry in entries}) == 4
        assert {catalog.place(entry.id) for entry in entries if entry.kind == "search"} == {str(root / "search")}
        for search in searches:
            search.kill()

    def test_a_damaged_search(self, root: Path) -> None:
        search = WrittenSearch(root / "search")
        run = WrittenRun(root / "search" / f"f_{(id := search.create())}", id)
        run.end()
        search.kill()
        catalog = Catalog(root)
        entries = {entry.kind: entry.id for entry in catalog.refresh().changed}
        content = search.file.read_bytes()
        search.file.write_text("something else\n")
        changed = catalog.refresh()
        assert said(changed) == [("damaged", ""), ("run", "finished")], "its trial can still be seen"
        assert {entry.id for entry in changed.changed} == set(entries.values())
        search.file.write_bytes(content)
        assert said(catalog.refresh()) == [("search", "killed"), ("trial", "finished")]

    def test_nothing_is_read_where_nothing_has_changed(self, root: Path, nothing_is_read: Any) -> None:
        search = WrittenSearch(root / "search")
        runs = [WrittenRun(root / "search" / f"f_{(id := search.create())}", id) for _ in range(3)]
        runs[0].end()
        search.write(TrialEnded(n=0, status="finished"))
        catalog = Catalog(root)
        assert len(catalog.refresh().changed) == 4
        nothing_is_read()
        assert catalog.refresh() == Changes()
        for run in runs[1:]:
            run.kill()
        search.kill()


def test_ids_follow_from_the_place_below_the_root(root: Path, tmp_path: Path) -> None:
    WrittenRun(root / "experiment" / "a run, with ünï").end()
    shutil.copytree(root, tmp_path / "copy")
    ids = [[entry.id for entry in Catalog(each).refresh().changed] for each in (root, tmp_path / "copy")]
    assert ids[0] == ids[1]
    assert ids[0][0].isalnum()


def test_a_root_that_is_gone(root: Path) -> None:
    WrittenRun(root / "experiment" / "run").end()
    catalog = Catalog(root)
    (entry,) = catalog.refresh().changed
    shutil.rmtree(root)
    assert catalog.refresh() == Changes(removed=[entry.id])


def test_a_lock_that_cannot_be_looked_at_is_a_problem_of_its_run_only(tmp_path: Path) -> None:
    path = journals.write(tmp_path / "run", [journals.header(), journals.attempt()])
    run = LocalRun(str(path))
    with RunLock(path / "lock"):
        run.look()
        assert isinstance(run.summary, RunSummary)
        assert run.summary.alive
    (path / "lock").unlink()
    (path / "lock").symlink_to("lock")
    assert run.look()
    assert isinstance(run.summary, Problem)


def test_folders_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    place = LocalPlace(str(tmp_path))
    for number in range(3):
        (tmp_path / f"experiment_{number}" / "run").mkdir(parents=True)
    list(place.folders())
    assert len(place._listed) == 4
    for number in range(3):
        shutil.rmtree(tmp_path / f"experiment_{number}")
    assert [folder.below for folder in place.folders()] == [[]]
    assert len(place._listed) == 1


def test_the_ids_of_runs_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    listing = Listing(Catalog(tmp_path), str(tmp_path))
    for name in ("kept", "gone"):
        journals.write(tmp_path / name / "run", [journals.header(name), journals.attempt()])
    listing.look()
    assert len(listing.ids) == 2
    shutil.rmtree(tmp_path / "gone")
    listing.look()
    assert list(listing.ids) == [str(tmp_path / "kept" / "run")]
