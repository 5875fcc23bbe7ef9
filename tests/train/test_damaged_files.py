"""One damaged file of a run: only the journal, and the checkpoint that is needed, may keep it from going on."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest

from paceline.air import Checkpoint, CheckpointConfig, Result, RunConfig, ScalingConfig, session
from paceline.air.errors import CheckpointError, RestoreError
from paceline.storage.journal import read
from paceline.train import DataParallelTrainer
from tests.storage.damage import (
    TO_DIRECTORIES,
    TO_FILES,
    Damage,
    delete,
    empty,
    garble,
    overwrite_with_text,
    replace_by_directory,
    replace_by_file,
    truncate,
)

STEPS = 5


def count(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    start = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    for step in range(start + 1, STEPS + 1):
        if step == STEPS and config.get("fails"):
            raise ValueError("not yet")
        with_checkpoint = step % config.get("checkpoint_every", 1) == 0
        checkpoint = Checkpoint.from_dict({"step": step}) if with_checkpoint else None
        session.report({"step": step, "text": "a,\nb"}, checkpoint=checkpoint)


SIDE_FILES = [
    "error.txt", "events.out.tfevents.*", "lock", "logs/rank_0.log", "params.json", "progress.csv", "result.json",
]  # fmt: skip
CHECKPOINTS = [f"checkpoint_{number:06d}" for number in range(STEPS - 1)]
CHECKPOINT_FILES = ["MANIFEST.json", ".metadata.json", "dict_checkpoint.pkl"]

DAMAGED: list[tuple[str, list[Damage]]] = [
    *((name, TO_FILES) for name in SIDE_FILES),
    *((name, TO_DIRECTORIES) for name in ("logs", "rank_0")),
    *(
        (f"{checkpoint}/{name}", TO_FILES)
        for checkpoint in (CHECKPOINTS[1], CHECKPOINTS[-1])
        for name in CHECKPOINT_FILES
    ),
    *((name, TO_DIRECTORIES) for name in (CHECKPOINTS[1], CHECKPOINTS[-1])),
]
CASES = [
    # One kind of damage to each file, another one to the next; all of them to all files take a minute.
    pytest.param(name, damage, marks=() if place % len(damages) == number else pytest.mark.slow)
    for place, (name, damages) in enumerate(DAMAGED)
    for number, damage in enumerate(damages)
]


def make_run(directory: Path, **config: Any) -> Path:
    trainer = DataParallelTrainer(
        count,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="run", storage_path=str(directory), verbose=0, engine="inline"),
    )
    trial = trainer.fit(raise_on_error=False).log_dir
    assert trial is not None
    (trial / "error.txt").touch()
    (trial / "logs" / "rank_0.log").write_text("from a worker process\n")
    return trial


@pytest.fixture(scope="module")
def failed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("failed"), fails=True)


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture(params=["failed", "finished"])
def trial(request: pytest.FixtureRequest, failed_once: Path, finished_once: Path, tmp_path: Path) -> Path:
    """A run of its own for each test: one that can go on, and one that has nothing left to do."""
    return shutil.copytree({"failed": failed_once, "finished": finished_once}[request.param], tmp_path / "run")


@pytest.fixture
def failed(failed_once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(failed_once, tmp_path / "run")


def restored(trial: Path, engine: str = "inline") -> Result:
    """Whatever is said about damage, nobody turns it into an error."""
    return DataParallelTrainer.restore(
        trial,
        train_loop_per_worker=count,
        train_loop_config={},
        run_config=RunConfig(verbose=0, engine=engine, checkpoint_config=CheckpointConfig()),
    ).fit()


def read_result(trial: Path) -> Result:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = Result.from_path(trial)
    assert [str(each.message) for each in caught] == result.warnings
    return result


def steps_in_files(trial: Path) -> Iterator[list[int]]:
    yield [json.loads(line)["step"] for line in (trial / "result.json").read_text().splitlines()]
    yield pandas.read_csv(trial / "progress.csv")["step"].tolist()


def test_every_file_of_a_run_is_among_those_that_are_damaged(finished_once: Path) -> None:
    files = {str(path.relative_to(finished_once)) for path in finished_once.rglob("*") if path.is_file()}
    known = {*SIDE_FILES, "journal.jsonl", *(f"{each}/{name}" for each in CHECKPOINTS for name in CHECKPOINT_FILES)}
    known |= {f"checkpoint_{STEPS - 1:06d}/{name}" for name in CHECKPOINT_FILES}
    assert {name for name in files if "tfevents" not in name} == known - {"events.out.tfevents.*"}


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_a_damaged_side_file_blocks_nothing(trial: Path, name: str, damage: Damage) -> None:
    before = read_result(trial)
    (path,) = trial.glob(name)
    damage(path)
    found = read_result(trial)
    assert found.metrics == before.metrics
    assert found.metrics_dataframe.equals(before.metrics_dataframe)
    assert found.status == before.status

    result = restored(trial)
    assert result.status == "finished"
    assert result.metrics_dataframe["step"].tolist() == list(range(1, STEPS + 1))
    assert result.checkpoint is not None
    if before.status != "finished":
        assert result.checkpoint.to_dict()["step"] == STEPS
        assert list(steps_in_files(trial)) == [list(range(1, STEPS + 1))] * 2
    assert json.loads((trial / "params.json").read_text()) == {"train_loop_config": {}}


@pytest.mark.parametrize(
    ("name", "damage", "warning"),
    [
        ("progress.csv", garble, r"progress\.csv was damaged"),
        ("result.json", overwrite_with_text, r"result\.json was damaged"),
        ("progress.csv", replace_by_directory, r"progress\.csv.*directory"),
        ("lock", replace_by_directory, "lock.*directory"),
        ("rank_0", replace_by_file, "rank_0.*file"),
        ("checkpoint_000001/.metadata.json", garble, "checkpoint_000001.*damaged"),
        ("checkpoint_000001/MANIFEST.json", delete, "checkpoint_000001.*damaged"),
        ("checkpoint_000003/dict_checkpoint.pkl", truncate, "checkpoint_000003.*damaged"),
        ("checkpoint_000003", delete, "checkpoint_000003.*gone"),
    ],
)
def test_what_was_damaged_is_told(failed: Path, name: str, damage: Damage, warning: str) -> None:
    damage(failed / name)
    assert any(re.match(warning, each) for each in restored(failed).warnings)


def test_what_is_put_aside_is_kept(failed: Path) -> None:
    overwrite_with_text(failed / "progress.csv")
    content = (failed / "progress.csv").read_bytes()
    restored(failed)
    assert (failed / "progress.csv.corrupt").read_bytes() == content


def test_half_a_line_of_a_killed_driver_is_no_damage(failed: Path) -> None:
    for name in ("result.json", "progress.csv"):
        with (failed / name).open("ab") as file:
            file.write(b'{"half a li')
    assert restored(failed).warnings == []
    assert list(steps_in_files(failed)) == [list(range(1, STEPS + 1))] * 2


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("logs", replace_by_file),
        pytest.param("logs/rank_0.log", replace_by_directory, marks=pytest.mark.slow),
        pytest.param("rank_0", delete, marks=pytest.mark.slow),
    ],
)
def test_worker_processes_find_their_places(failed: Path, name: str, damage: Damage) -> None:
    damage(failed / name)
    assert restored(failed, "local").status == "finished"


@pytest.mark.parametrize("name", ["checkpoint_000001", "checkpoint_000003"])
def test_a_checkpoint_with_damaged_metadata_is_read_by_nobody_unnoticed(failed: Path, name: str) -> None:
    (failed / name / ".metadata.json").write_text("{")
    result = read_result(failed)
    assert [each.split()[0] for each in result.warnings] == [name]
    (damaged,) = [each for each, _ in result.best_checkpoints if str(each.path).endswith(name)]
    with pytest.raises(CheckpointError, match=r"\.metadata\.json"):
        damaged.to_dict()


@pytest.mark.parametrize("damage", [garble, overwrite_with_text, empty, delete, replace_by_directory])
def test_a_damaged_journal_is_an_error(trial: Path, damage: Damage) -> None:
    damage(trial / "journal.jsonl")
    for use in (Result.from_path, restored):
        with pytest.raises(RestoreError, match=r"journal\.jsonl"):
            use(trial)


class TestJournalThatWasCutShort:
    """Its records end before the newest checkpoint."""

    def cut(self, trial: Path, rows: int) -> None:
        lines = (trial / "journal.jsonl").read_bytes().splitlines(keepends=True)
        kinds = [record["kind"] for record in read(trial / "journal.jsonl")]
        end = [position for position, kind in enumerate(kinds) if kind == "row"][rows]
        (trial / "journal.jsonl").write_bytes(b"".join(lines[:end]))

    @pytest.fixture
    def sparse(self, tmp_path: Path) -> Path:
        """Checkpoints at steps 2 and 4 of 4."""
        return make_run(tmp_path, fails=True, checkpoint_every=2)

    def test_the_result_says_which_rows_are_missing(self, failed: Path) -> None:
        self.cut(failed, rows=2)
        (warning,) = read_result(failed).warnings
        assert re.search(r"journal\.jsonl.*iterations 3 to 4.*checkpoint of iteration 4", warning)

    def test_rows_of_checkpoints_come_back_with_a_restore(self, failed: Path) -> None:
        self.cut(failed, rows=2)
        result = restored(failed)
        assert result.metrics_dataframe["step"].tolist() == [1, 2, 3, 4, 5]
        assert not result.warnings
        assert not read_result(failed).warnings

    def test_other_rows_are_told_to_be_missing_from_then_on(self, sparse: Path) -> None:
        self.cut(sparse, rows=1)
        assert "iterations 2 to 4" in read_result(sparse).warnings[0]
        result = restored(sparse)
        assert result.metrics_dataframe["step"].tolist() == [1, 2, 4, 5]
        for warning in (result.warnings[0], read_result(sparse).warnings[0]):
            assert re.search(r"rows of iterations 3\b(?! to)", warning)
        assert list(steps_in_files(sparse)) == [[1, 2, 3, 4, 5]] * 2

    def test_the_description_of_the_run_alone(self, failed: Path) -> None:
        lines = (failed / "journal.jsonl").read_bytes().splitlines(keepends=True)
        (failed / "journal.jsonl").write_bytes(lines[0])
        assert "iterations 1 to 4" in read_result(failed).warnings[0]
        assert restored(failed).metrics_dataframe["step"].tolist() == [1, 2, 3, 4, 5]
