"""Boosting that is interrupted ends with the very model that undisturbed boosting makes."""

from __future__ import annotations

import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paceline.air import CheckpointConfig, FailureConfig, Result, ScalingConfig
from paceline.data.preprocessors import StandardScaler
from paceline.testing.invariants import check_run, committed_checkpoints
from paceline.testing.processes import Driver, Marks
from tests.faults.cases import mostly_slow
from tests.train.trees.libraries import (
    LIGHTGBM,
    XGBOOST,
    Library,
    Notes,
    Task,
    binary,
    both_libraries,
    killed,
    regression,
    rows_of,
)

ROUNDS, SAVE_EVERY = 20, 5
ONE_RETRY = FailureConfig(max_failures=1)
TASK = binary()
EVEN = regression()
"""Every row weighs the same in every round: then both libraries find the same splits, whoever holds the rows."""

PARAMS: dict[str, dict[str, dict[str, Any]]] = {
    "xgboost": {
        "plain": {},
        "drawn rows and columns": {"subsample": 0.7, "colsample_bytree": 0.6, "colsample_bynode": 0.8, "seed": 7},
        "dart": {"booster": "dart", "rate_drop": 0.2, "seed": 7},
        "approx": {"tree_method": "approx"},
    },
    "lightgbm": {"plain": {}, "by votes": {"tree_learner": "voting", "top_k": 10}},
}
LIBRARIES = [XGBOOST, LIGHTGBM]
CASES = [
    pytest.param(library, kind, id=f"{library}-{kind.replace(' ', '-')}")
    for library in LIBRARIES
    for kind in PARAMS[library.name]
]


lightgbm_every_day = pytest.mark.parametrize("library", mostly_slow(LIBRARIES, everyday=[LIGHTGBM]), ids=str)


def trainer(
    library: Library,
    storage: Path,
    notes: Notes | None = None,
    kind: str = "plain",
    task: Task = TASK,
    **arguments: Any,
) -> Any:
    """20 rounds, a checkpoint after every 5 of them."""
    settings: dict[str, Any] = {
        "params": {**library.params(task), **PARAMS[library.name][kind]},
        "num_boost_round": ROUNDS,
        "storage_path": str(storage),
        "checkpoint_config": CheckpointConfig(checkpoint_frequency=SAVE_EVERY),
        **arguments,
    }
    if notes is not None:
        settings["callbacks"] = [library.before_rounds(notes), *settings.get("callbacks", [])]
    return library.trainer(task, **settings)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of the same training in which nothing happens."""

    @cache
    def result(library: Library, kind: str = "plain", even: bool = False) -> Result:
        task = EVEN if even else TASK
        found: Result = trainer(library, tmp_path_factory.mktemp(library.name), kind=kind, task=task).fit()
        return found

    return result


def assert_same_end(library: Library, result: Result, undisturbed: Result, task: Task = TASK) -> None:
    """Every metric of every round, and every tree, bit for bit."""
    for dataset in ("train", "valid"):
        key = library.key(task, dataset)
        assert rows_of(result, key) == rows_of(undisturbed, key)
    assert library.model_text(result.checkpoint) == library.model_text(undisturbed.checkpoint)


@pytest.mark.slow
@pytest.mark.parametrize(("library", "kind"), CASES)
def test_a_worker_killed_between_two_checkpoints(library: Library, kind: str, tmp_path: Path, undisturbed: Any) -> None:
    notes = Notes(str(tmp_path / "marks"), at=13, rank=1, do=killed)
    result = trainer(library, tmp_path / "storage", notes, kind, failure_config=ONE_RETRY).fit()
    check_run(result.path, result=result, iterations=ROUNDS, attempts=2)
    names = [path.name for path in committed_checkpoints(Path(result.path))]
    assert names == [f"checkpoint_{number:06}" for number in range(5, ROUNDS + 1, SAVE_EVERY)]
    begun = [mark["number"] for mark in Marks(notes.marks).read("round", rank=0)]
    assert begun == [*range(1, 14), *range(11, ROUNDS + 1)]  # no more is done again than was lost
    assert_same_end(library, result, undisturbed(library, kind))


@pytest.mark.slow
def test_a_kill_while_lightgbm_draws_rows_and_columns(tmp_path: Path) -> None:
    """Its draws follow from earlier ones, which a continued training does not repeat: another model, as good a one."""
    params = {**LIGHTGBM.params(TASK), "bagging_fraction": 0.7, "bagging_freq": 1, "feature_fraction": 0.6, "seed": 7}
    expected = trainer(LIGHTGBM, tmp_path / "undisturbed", params=params).fit()
    notes = Notes(str(tmp_path / "marks"), at=13, rank=1, do=killed)
    result = trainer(LIGHTGBM, tmp_path / "storage", notes, params=params, failure_config=ONE_RETRY).fit()
    check_run(result.path, result=result, iterations=ROUNDS, attempts=2)
    found, wanted = (rows_of(each, LIGHTGBM.key(TASK)) for each in (result, expected))
    assert found[:10] == wanted[:10]
    assert found[-1] == pytest.approx(wanted[-1], abs=0.03)


@pytest.mark.slow
@both_libraries
def test_rank_0_killed_in_the_first_round_and_without_a_checkpoint(
    library: Library, tmp_path: Path, undisturbed: Any
) -> None:
    notes = Notes(str(tmp_path / "marks"), at=1, rank=0, do=killed)
    result = trainer(library, tmp_path / "storage", notes, failure_config=ONE_RETRY).fit()
    check_run(result.path, result=result, iterations=ROUNDS, attempts=2)
    assert_same_end(library, result, undisturbed(library))


@pytest.mark.slow
@both_libraries
def test_rank_0_killed_in_the_last_round(library: Library, tmp_path: Path, undisturbed: Any) -> None:
    notes = Notes(str(tmp_path / "marks"), at=ROUNDS, rank=0, do=killed)
    result = trainer(library, tmp_path / "storage", notes, failure_config=ONE_RETRY).fit()
    check_run(result.path, result=result, iterations=ROUNDS, attempts=2)
    assert_same_end(library, result, undisturbed(library))


@pytest.mark.slow
@both_libraries
def test_early_stopping_remembers_the_best_round_over_a_kill(library: Library, tmp_path: Path) -> None:
    """The kill falls between the best round and the one that stops."""

    def stopping(storage: Path, notes: Notes | None = None) -> Result:
        stop = library.early_stopping(10)
        params = {**library.params(TASK), "learning_rate": 0.5}
        settings = {**stop, "params": params, "num_boost_round": 1000}
        found: Result = trainer(library, storage, notes, failure_config=ONE_RETRY, **settings).fit()
        return found

    expected = stopping(tmp_path / "undisturbed")
    rounds = len(rows_of(expected, library.key(TASK)))
    best = expected.checkpoint.get_model().best_iteration  # type: ignore[union-attr]
    assert 10 < rounds < 1000
    notes = Notes(str(tmp_path / "marks"), at=rounds - 1, rank=1, do=killed)
    result = stopping(tmp_path / "killed", notes)
    check_run(result.path, result=result, iterations=rounds, attempts=2)
    assert result.checkpoint.get_model().best_iteration == best  # type: ignore[union-attr]
    assert_same_end(library, result, expected)


@pytest.mark.slow
@both_libraries
def test_the_preprocessor_is_in_the_checkpoint_after_a_retry(library: Library, tmp_path: Path) -> None:
    columns = ["mean radius", "mean texture"]
    notes = Notes(str(tmp_path / "marks"), at=13, rank=0, do=killed)
    scaled = trainer(
        library, tmp_path / "storage", notes, failure_config=ONE_RETRY, preprocessor=StandardScaler(columns)
    )
    result = scaled.fit()
    check_run(result.path, result=result, iterations=ROUNDS, attempts=2)
    for directory in committed_checkpoints(Path(result.path)):
        checkpoint = type(result.checkpoint).from_directory(str(directory))
        fitted = checkpoint.get_preprocessor()
        assert fitted is not None
        rows = fitted.transform_batch(TASK.frames["train"])
        assert rows[columns].to_numpy().mean(0) == pytest.approx([0, 0], abs=1e-9)
    predicted = library.predictor_class.from_checkpoint(result.checkpoint).predict(TASK.frames["valid"])
    right = (predicted["predictions"] > 0.5) == TASK.labels("valid")
    assert right.mean() > 0.95


# -- the driver ---------------------------------------------------------------------------


def drive(library: Library, folder: Path, at: int) -> Driver:
    """A driver whose workers stand still before round `at`."""
    script = folder / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            from pathlib import Path
            from tests.e2e.test_tree_recovery import EVEN, trainer
            from tests.train.trees.libraries import LIGHTGBM, XGBOOST, Notes, held

            folder = Path({str(folder)!r})
            notes = Notes(str(folder / "marks"), at={at}, do=held)
            trainer({library.name.upper()}, folder / "storage", notes, task=EVEN).fit()
        """)
    )
    return Driver([str(script)], output=folder / "driver.txt")


def killed_driver(library: Library, folder: Path, at: int) -> Path:
    """The trial directory of a run whose driver was killed in round `at`; nothing of it lives on."""
    with drive(library, folder, at) as driver:
        Marks(folder / "marks").wait("held", 2)
        driver.kill()
        assert len(driver.known()) >= 3
        (trial_dir,) = [path.parent for path in (folder / "storage").glob("*/*/journal.jsonl")]
        check_run(trial_dir, processes=driver.known(), swept=False)
    return trial_dir


@lightgbm_every_day
def test_a_run_is_restored_after_the_death_of_its_driver(library: Library, tmp_path: Path, undisturbed: Any) -> None:
    trial_dir = killed_driver(library, tmp_path, at=8)
    notes = Notes(str(tmp_path / "again"))
    assert library.trainer_class.can_restore(str(trial_dir))
    restored = library.trainer_class.restore(
        str(trial_dir), datasets=EVEN.datasets(), callbacks=[library.before_rounds(notes)]
    )
    result = restored.fit()
    check_run(trial_dir, result=result, iterations=ROUNDS, attempts=2)
    begun = [mark["number"] for mark in Marks(notes.marks).read("round", rank=0)]
    assert begun == list(range(6, ROUNDS + 1))
    assert_same_end(library, result, undisturbed(library, even=True), EVEN)


@pytest.mark.slow
@both_libraries
def test_a_run_is_restored_with_another_number_of_workers(library: Library, tmp_path: Path, undisturbed: Any) -> None:
    trial_dir = killed_driver(library, tmp_path, at=8)
    restored = library.trainer_class.restore(
        str(trial_dir),
        datasets=EVEN.datasets(),
        callbacks=[library.before_rounds(Notes(str(tmp_path / "again")))],
        scaling_config=ScalingConfig(num_workers=3),
    )
    result = restored.fit()
    check_run(trial_dir, result=result, iterations=ROUNDS, attempts=2)
    ranks = {mark["rank"] for mark in Marks(tmp_path / "again").read("round")}
    assert ranks == {0, 1, 2}
    assert library.rounds(result.checkpoint) == ROUNDS
    key, expected = library.key(EVEN), undisturbed(library, even=True)
    assert rows_of(result, key)[:5] == rows_of(expected, key)[:5]
    assert rows_of(result, key) == pytest.approx(rows_of(expected, key), rel=1e-6)


@pytest.mark.slow
@both_libraries
def test_a_new_run_resumes_with_another_number_of_workers(library: Library, tmp_path: Path, undisturbed: Any) -> None:
    first = trainer(library, tmp_path / "storage", task=EVEN, num_boost_round=10).fit()
    second = trainer(
        library,
        tmp_path / "storage",
        task=EVEN,
        resume_from_checkpoint=first.checkpoint,
        scaling_config=ScalingConfig(num_workers=1),
    ).fit()
    check_run(second.path, result=second, iterations=ROUNDS - 10, attempts=1)
    assert library.rounds(second.checkpoint) == ROUNDS
    assert [path.name for path in committed_checkpoints(Path(second.path))] == [
        f"checkpoint_{number:06}" for number in range(15, ROUNDS + 1, SAVE_EVERY)
    ]
    key = library.key(EVEN)
    assert rows_of(second, key) == pytest.approx(rows_of(undisturbed(library, even=True), key)[10:], rel=1e-6)
