"""First 14: a run that is taken up again says in three lines what it loads, why, and what differs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data
from paceline import train
from paceline.air import Checkpoint, RunConfig, ScalingConfig
from paceline.air.errors import RestoreError
from paceline.air.result import Result
from paceline.run import resume_notice
from paceline.train import DataParallelTrainer

LOUD: dict[str, Any] = {"engine": "inline", "verbose": 1}


def count(config: dict[str, Any]) -> None:
    checkpoint = train.get_checkpoint()
    first = checkpoint.to_dict()["step"] + 1 if checkpoint else 1
    for step in range(first, 5):
        if step == config["fails_at"]:
            raise RuntimeError("not further")
        train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))


def count_otherwise(config: dict[str, Any]) -> None:
    count(config)


def trainer(fails_at: int, config: RunConfig, function: Any = count, **settings: Any) -> DataParallelTrainer:
    return DataParallelTrainer(
        function,
        train_loop_config={"fails_at": fails_at},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=config,
        **settings,
    )


def failed(tmp_path: Path, **settings: Any) -> Result:
    """A run that has stored two checkpoints."""
    config = RunConfig(name="night", storage_path=str(tmp_path), engine="inline", verbose=0)
    return trainer(3, config, **settings).fit(raise_on_error=False)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """The lines about where an attempt begins."""

    def lines() -> list[str]:
        text = capsys.readouterr().out
        begins = re.compile(r"\S+ (resumes|starts) |Why|What differs|Warning: What differs")
        return [line for line in text.splitlines() if begins.match(line)]

    return lines


def restored(path: str | Path, function: Any = count, fails_at: int = 9, **settings: Any) -> Result:
    config = {"fails_at": fails_at}
    again = DataParallelTrainer.restore(
        str(path), function, train_loop_config=config, run_config=RunConfig(**LOUD), **settings
    )
    return again.fit(raise_on_error=False)


def test_nothing_differs(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    restored(failed(tmp_path).path, fails_at=3)
    what, why, differs = told()
    assert re.search(r"resumes after iteration 2 from checkpoint_000001 \(\d+ bytes, saved [\d.]+ s ago\)\.$", what)
    assert why == "Why this one: it is the newest committed checkpoint."
    assert differs == "What differs: nothing known."


def test_all_that_differs_is_one_line(
    tmp_path: Path, told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = failed(tmp_path, datasets={"train": paceline.data.range(100)}).path
    now = {"Python": "3.99.0", "paceline": "0.1.0"}
    monkeypatch.setattr(resume_notice, "package_versions", lambda modules: now)
    result = restored(path, count_otherwise, datasets={"train": paceline.data.range(120)})
    _, _, differs = told()
    assert "code (new: count_otherwise)" in differs
    assert "config (train_loop_config.fails_at 3 -> 9)" in differs
    assert "data (train 100 -> 120 rows)" in differs
    assert re.search(r"Python 3\.\d+\.\d+ -> 3\.99\.0", differs)
    assert differs.removeprefix("Warning: ") in result.warnings, "another version is worth a warning"
    assert result.status == "finished"


def rows_in(path: Path, value: int) -> paceline.data.Dataset:
    pq.write_table(pa.table({"x": [value] * 100}), path)
    return paceline.data.read_parquet(str(path))


def test_other_files_with_as_many_rows_are_noticed(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    first = failed(tmp_path, datasets={"train": rows_in(tmp_path / "a.parquet", 1)})
    unchanged = paceline.data.read_parquet(str(tmp_path / "a.parquet"))
    restored(first.path, fails_at=3, datasets={"train": unchanged})
    assert told()[-1] == "What differs: nothing known."
    restored(first.path, fails_at=3, datasets={"train": rows_in(tmp_path / "b.parquet", 1)})
    assert "data (train has other files, or files that have changed)" in told()[-1]


def test_a_file_that_was_written_again_is_noticed(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    first = failed(tmp_path, datasets={"train": rows_in(tmp_path / "a.parquet", 1).sort("x")})
    again = rows_in(tmp_path / "a.parquet", 2).sort("x")
    restored(first.path, fails_at=3, datasets={"train": again})
    assert "data (train has other files, or files that have changed)" in told()[-1]


def test_other_steps_are_noticed_though_the_rows_are_as_many(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    numbers = rows_in(tmp_path / "a.parquet", 1)
    first = failed(tmp_path, datasets={"train": numbers.random_shuffle()})
    restored(first.path, fails_at=3, datasets={"train": numbers.random_shuffle()})
    assert told()[-1] == "What differs: nothing known."
    restored(first.path, fails_at=3, datasets={"train": numbers.map_batches(lambda batch: batch).random_shuffle()})
    assert "data (train is made from its files in other steps)" in told()[-1]


def test_a_damaged_checkpoint_is_explained(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    path = Path(failed(tmp_path).path)
    with open(path / "checkpoint_000001" / "dict_checkpoint.pkl", "ab") as file:
        file.write(b"x")
    restored(path)
    what, why, _ = told()
    assert "resumes after iteration 1 from checkpoint_000000" in what
    assert "newest sound checkpoint; checkpoint_000001.corrupt was damaged and has been set aside" in why


def test_a_run_without_a_checkpoint_begins_anew(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    config = RunConfig(storage_path=str(tmp_path), engine="inline", verbose=0)
    begun = trainer(1, config)
    restored(begun.fit(raise_on_error=False).path, fails_at=1)
    what, why, _ = told()
    assert what.endswith("starts from the beginning.")
    assert why == "Why: no checkpoint has been committed."


def test_a_checkpoint_of_another_run(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    given = failed(tmp_path).checkpoint
    assert given is not None
    config = RunConfig(storage_path=str(tmp_path), **LOUD)
    trainer(3, config, count_otherwise, resume_from_checkpoint=given).fit(raise_on_error=False)
    what, why, differs = told()
    assert f"with the state of {given.path} (" in what
    assert why == "Why this one: it was passed as resume_from_checkpoint."
    assert "code (new: count_otherwise)" in differs


def test_resume_auto_explains_itself_and_refuses_another_configuration(
    tmp_path: Path, told: Callable[[], list[str]]
) -> None:
    failed(tmp_path)
    config = RunConfig(name="night", storage_path=str(tmp_path), **LOUD)
    with pytest.raises(RestoreError, match="fails_at"):
        trainer(4, config).fit(resume="auto")
    trainer(3, config).fit(resume="auto", raise_on_error=False)
    assert "resumes after iteration 2" in told()[0]


def test_a_moved_directory_resumes(tmp_path: Path, told: Callable[[], list[str]]) -> None:
    moved = tmp_path / "elsewhere" / "run"
    moved.parent.mkdir()
    shutil.move(failed(tmp_path / "results").path, moved)
    assert restored(moved).status == "finished"
    assert "resumes after iteration 2" in told()[0]


def test_names_are_short(tmp_path: Path) -> None:
    """A path limit of 260 characters leaves room for the user's own directories."""
    path = Path(failed(tmp_path).path)
    assert len(path.name) <= 60
    longest = max(len(str(file.relative_to(tmp_path))) for file in path.rglob("*"))
    assert longest <= 120
