"""One damaged file of a search: only the experiment's journal may keep it from being read and continued."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, Result, RunConfig, session
from paceline.air.errors import RestoreError, StorageError
from paceline.storage.journal import Journal, encode_record, read
from paceline.tune import Callback, ResultGrid, TuneConfig, Tuner
from paceline.tune.experiment.grid import load_grid
from paceline.tune.schedulers.pbt_replay import Takeover, write_takeover
from paceline.tune.search import Searcher
from tests.storage.damage import (
    TO_DIRECTORIES,
    TO_FILES,
    Damage,
    delete,
    empty,
    garble,
    overwrite_with_text,
    replace_by_directory,
    truncate,
)

slow = pytest.mark.slow

ENDED, FAILED, INTERRUPTED = "count_*_00000", "count_*_00001", "count_*_00002"
ENDS = [("finished", 3), ("failed", 4), ("finished", 9), ("finished", 12)]


def count(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    start = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    for step in range(start + 1, 4):
        if (config["x"], step) == (2, 3):
            raise ValueError("always")
        session.report({"score": config["x"] * step}, checkpoint=Checkpoint.from_dict({"step": step}))


class Ascending(Searcher):
    """Suggests 1 to 4, and keeps in a file how far it is; without it, it learns from being reminded."""

    def __init__(self) -> None:
        super().__init__(metric="score", mode="max")
        self.last = 0

    def suggest(self, trial_id: str) -> Any:
        if self.last == 4:
            return Searcher.FINISHED
        self.last += 1
        return {"x": self.last}

    def remember(self, trial_id: str, config: dict[str, Any]) -> None:
        self.last += 1

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        pass

    def save(self, path: str) -> None:
        Path(path).write_text(f"{self.last:8}")

    def restore(self, path: str) -> None:
        self.last = int(Path(path).read_text())


class Interrupt(Callback):
    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        if result["score"] == 6:
            raise KeyboardInterrupt


def settings(**run_config: Any) -> dict[str, Any]:
    return {
        "tune_config": TuneConfig(search_alg=Ascending(), num_samples=4, max_concurrent_trials=1),
        "run_config": RunConfig(verbose=0, engine="inline", **run_config),
    }


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = str(tmp_path_factory.mktemp("made"))
    with pytest.raises(KeyboardInterrupt):
        Tuner(count, **settings(name="search", storage_path=place, callbacks=[Interrupt()])).fit()
    return Path(place, "search")


@pytest.fixture
def search(made_once: Path, tmp_path: Path) -> Path:
    """A search of its own for each test: a finished trial, a failed one, an interrupted one; a fourth is to come."""
    return shutil.copytree(made_once, tmp_path / "search")


def the(search: Path, pattern: str) -> Path:
    (path,) = search.glob(pattern)
    return path


def restored(search: Path) -> Tuner:
    return Tuner.restore(search, count, **settings())


def facts(grid: ResultGrid) -> list[tuple[str, Any]]:
    return [(result.status, result.metrics.get("score")) for result in grid]


TRIAL_FILES = ["events.out.tfevents.*", "lock", "params.json", "progress.csv", "result.json"]
CHECKPOINT_FILES = ["MANIFEST.json", ".metadata.json", "dict_checkpoint.pkl"]


def rest_slow(cases: Sequence[Any], *, every: int) -> list[Any]:
    """One of so many in each run of the tests; the others have the mark `slow`."""
    return [
        case if number % every == 0 else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=slow)
        for number, case in enumerate(cases)
    ]


CASES: list[tuple[str, Damage]] = [
    *((name, damage) for name in ("experiment-*.lock", "searcher-*.state") for damage in TO_FILES),
    # What else can happen to the files of a run is the same in a search.
    *((f"{INTERRUPTED}/{name}", damage) for name in TRIAL_FILES for damage in (garble, replace_by_directory)),
    *((f"{INTERRUPTED}/checkpoint_000000/{name}", damage) for name in CHECKPOINT_FILES for damage in (garble, delete)),
    *((f"{INTERRUPTED}/checkpoint_000001/{name}", damage) for name in CHECKPOINT_FILES for damage in (garble, delete)),
    (f"{FAILED}/error.txt", replace_by_directory),
    *((f"{INTERRUPTED}/{name}", damage) for name in ("logs", "rank_0") for damage in TO_DIRECTORIES),
]


@pytest.mark.parametrize(("name", "damage"), rest_slow(CASES, every=6))
def test_a_damaged_side_file_blocks_nothing(search: Path, name: str, damage: Damage) -> None:
    damage(the(search, name))
    assert facts(restored(search).get_results()) == [*ENDS[:2], ("interrupted", 6)]
    assert facts(restored(search).fit()) == ENDS


def damage_in_the_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


TO_JOURNALS = [garble, overwrite_with_text, damage_in_the_middle, truncate, empty, delete, replace_by_directory]


@pytest.mark.parametrize("trial", [ENDED, FAILED])
@pytest.mark.parametrize("damage", rest_slow(TO_JOURNALS, every=5))
def test_the_experiment_knows_how_a_trial_ended_whose_journal_is_damaged(
    search: Path, trial: str, damage: Damage
) -> None:
    directory = the(search, trial)
    damage(directory / "journal.jsonl")
    grid = restored(search).get_results()
    assert facts(grid) == [*ENDS[:2], ("interrupted", 6)]
    assert len(grid.get_dataframe("score", "max")) == 3
    (damaged,) = [result for result in grid if result.log_dir == directory]
    assert any("journal.jsonl" in warning for warning in damaged.warnings)
    assert facts(restored(search).fit()) == ENDS


@pytest.mark.parametrize("trial", [ENDED, FAILED, INTERRUPTED])
@pytest.mark.parametrize("damage", rest_slow(TO_DIRECTORIES, every=len(TO_DIRECTORIES)))
def test_the_directory_of_a_trial_is_gone(search: Path, trial: str, damage: Damage) -> None:
    damage(the(search, trial))
    left = restored(search).get_results()
    assert len(facts(left)) == 3
    if trial == ENDED:
        assert (left[0].status, left[0].metrics["score"], left[0].checkpoint) == ("finished", 3, None)
    assert facts(restored(search).fit()) == ENDS


@pytest.mark.parametrize("damage", rest_slow([each for each in TO_JOURNALS if each is not truncate], every=4))
def test_an_unfinished_trial_whose_journal_is_damaged_starts_anew_and_loses_nothing(
    search: Path, damage: Damage
) -> None:
    directory = the(search, INTERRUPTED)
    damage(directory / "journal.jsonl")
    unfinished = restored(search).get_results()[2]
    assert unfinished.status == "unfinished"
    assert "journal.jsonl" in unfinished.warnings[0]
    assert facts(restored(search).fit()) == ENDS
    assert (search / f"{directory.name}.corrupt" / "checkpoint_000001" / "dict_checkpoint.pkl").is_file()
    assert len(load_grid(search)) == 4


@pytest.mark.parametrize("damage", [garble, overwrite_with_text, empty, delete, replace_by_directory])
def test_a_damaged_journal_of_the_experiment_is_an_error(search: Path, damage: Damage) -> None:
    damage(the(search, "experiment-*.jsonl"))
    for use in (restored, load_grid):
        with pytest.raises((RestoreError, StorageError), match=r"experiment-.*\.jsonl"):
            use(search)


def test_another_experiments_journal_in_the_same_directory_may_be_damaged(search: Path) -> None:
    (search / "experiment-abcde.jsonl").mkdir()
    (search / "experiment-abcdf.jsonl").write_bytes(b"\0" * 100)
    assert len(load_grid(search)) == 3


def test_an_experiments_journal_that_was_cut_short_is_reported(search: Path) -> None:
    journal = the(search, "experiment-*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    third = [position for position, record in enumerate(read(journal)) if record["kind"] == "trial"][2]
    journal.write_bytes(b"".join(lines[:third]))
    with pytest.warns(UserWarning, match=r"experiment-\w+\.jsonl.* count_\w+_00002\b"):
        assert len(load_grid(search)) == 2
    assert facts(restored(search).fit()) == ENDS
    assert Result.from_path(the(search, f"{INTERRUPTED}/")).metrics["score"] == 6


def test_files_for_people_to_read_do_not_end_a_search(tmp_path: Path) -> None:
    for name in ("pbt_global.txt", "pbt_policy_b.txt"):
        (tmp_path / name).mkdir()
    write_takeover(str(tmp_path), [Takeover("b", "a", 1, 1, {}, {})])
    assert (tmp_path / "pbt_policy_b.txt").read_text() == (tmp_path / "pbt_global.txt").read_text()


class TestNamesInTheJournal:
    """The files of an experiment may come from anywhere."""

    def change(self, search: Path, kind: str, /, **changed: Any) -> None:
        journal = the(search, "experiment-*.jsonl")
        records = [{**each, **changed} if each["kind"] == kind else each for each in read(journal)]
        journal.unlink()
        writer = Journal(journal)
        for record in records:
            writer.append_raw(encode_record(record, finite=False))
        writer.close()

    def refused(self, search: Path, match: str) -> None:
        place = search.parent  # nothing beside the experiment is touched, either
        before = sorted(map(str, place.rglob("*")))
        for use in (load_grid, restored):
            with pytest.raises(RestoreError, match=match):
                use(search)
        assert not Tuner.can_restore(search)
        assert sorted(map(str, place.rglob("*"))) == before

    @pytest.mark.parametrize("name", ["", ".", "..", "../outside", "/tmp/outside", "a/b", "a\0b", 7, None, ["a"]])
    def test_a_trials_directory_is_one_below_the_experiments(self, search: Path, name: Any) -> None:
        self.change(search, "trial", dir=name)
        self.refused(search, r"trial's directory|has an invalid .*\$\.dir")

    @pytest.mark.parametrize("name", ["", ".", "..", "../outside"])
    def test_the_directory_of_a_trial_that_is_started_again(self, search: Path, name: str) -> None:
        """It is emptied first: this was the way to delete the experiment."""
        self.change(search, "finish", kind="again", n=1, dir=name)
        self.refused(search, "trial's directory")

    def test_a_trials_directory_is_no_link(self, search: Path, tmp_path: Path) -> None:
        trial = the(search, INTERRUPTED)
        shutil.move(trial, tmp_path / "outside")
        trial.symlink_to(tmp_path / "outside")
        self.refused(search, "symbolic link")
        assert (tmp_path / "outside" / "journal.jsonl").is_file()

    @pytest.mark.parametrize("id_", ["", "../..", "a/../", 5, None])
    def test_the_experiments_id(self, search: Path, id_: Any) -> None:
        self.change(search, "experiment", id=id_)
        self.refused(search, r"experiment's id|has an invalid .*\$\.id")

    @pytest.mark.parametrize("number", ["../../x", 1.5, None, True])
    def test_the_number_of_a_searchers_state(self, search: Path, number: Any) -> None:
        self.change(search, "searcher", saved=number)
        self.refused(search, r"has an invalid .*\$\.saved")

    @pytest.mark.parametrize("number", [-1, 7, "0", None, 1.0])
    @pytest.mark.parametrize("kind", ["trial", "end"])
    def test_the_number_of_a_trial(self, search: Path, kind: str, number: Any) -> None:
        self.change(search, kind, n=number)
        self.refused(search, r"number of its trial|has an invalid .*\$\.n\b")
