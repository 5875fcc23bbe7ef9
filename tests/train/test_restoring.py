"""Which run is continued, and what is said if it is the wrong one; fit(resume=...)."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from sklearn.linear_model import LogisticRegression  # here, because it changes variables of the process

from paceline import tune
from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, RestoreError, TrainingFailedError
from paceline.air.result import Result
from paceline.air.settings import stored
from paceline.data import from_items
from paceline.run.records import VERSION
from paceline.storage.journal import Journal, read
from paceline.train import BaseTrainer, DataParallelTrainer
from paceline.train.huggingface import TransformersTrainer
from paceline.train.lightgbm import LightGBMTrainer
from paceline.train.sklearn import SklearnTrainer
from paceline.train.torch import TorchTrainer
from paceline.train.xgboost import XGBoostTrainer
from paceline.tune import Callback
from tests.train.quick import quick_trainer

numbers = itertools.count()
INLINE = RunConfig(verbose=0, engine="inline")


def fails_late(config: dict[str, Any]) -> None:
    session.report({"x": 1}, checkpoint=Checkpoint.from_dict({"x": 1}))
    raise ValueError("no such column")


def works(config: dict[str, Any]) -> None:
    session.report({"x": config.get("x", 1)})


def failed_run(loop: Any = fails_late, **settings: Any) -> Result:
    return quick_trainer(loop, inline=True, **settings).fit(raise_on_error=False)


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    trainer = quick_trainer(works, inline=True)
    run_config = RunConfig(name="search", storage_path=str(tmp_path), verbose=0, engine="inline")
    tune.Tuner(trainer, param_space={"train_loop_config": {"x": 2}}, run_config=run_config).fit()
    return tmp_path / "search"


# -- restore(path, function) --------------------------------------------------------------


def test_the_function_and_its_config_come_after_the_path() -> None:
    path = failed_run(config={"x": 1}).path
    assert DataParallelTrainer.restore(path, works, run_config=INLINE).fit().metrics["x"] == 1
    trainer = DataParallelTrainer.restore(path, works, {"x": 5})
    assert trainer.train_loop_config == {"x": 5}


@pytest.mark.parametrize(
    ("given", "named", "told"),
    [
        ((works, {}, 3), {}, "train_loop_per_worker, train_loop_config"),
        ((works,), {"train_loop_per_worker": works}, "two values for train_loop_per_worker"),
        ((), {"train_loop_per_workers": works}, r"restore\(\) .*train_loop_per_worker\?"),
        ((works,), {"num_workers": 2}, r"ScalingConfig\(num_workers="),
    ],
)
def test_wrong_arguments_of_restore_are_named_before_anything_is_read(given: Any, named: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        DataParallelTrainer.restore("nowhere", *given, **named)


def test_a_place_that_does_not_exist(tmp_path: Path) -> None:
    uri = f"memory://nowhere-{next(numbers)}"
    for place in (str(tmp_path / "nothing"), uri):
        with pytest.raises(RestoreError, match=rf"{place} does not exist"):
            DataParallelTrainer.restore(place, works)
        with pytest.raises(RestoreError, match=rf"{place} does not exist"):
            tune.Tuner.restore(place, works)
    (tmp_path / "file").touch()
    with pytest.raises(RestoreError, match="file is a file"):
        DataParallelTrainer.restore(tmp_path / "file", works)


def test_a_search_is_not_continued_by_a_trainer(searched: Path) -> None:
    (trial,) = searched.glob("DataParallelTrainer_*")
    for place in (searched, trial):
        assert not DataParallelTrainer.can_restore(place)
        with pytest.raises(RestoreError, match=rf"Tuner\.restore\('{searched}', trainable=\.\.\.\)"):
            DataParallelTrainer.restore(place, works)


def test_a_run_is_not_continued_by_a_tuner(searched: Path) -> None:
    result = failed_run()
    for place in (result.path, Path(result.path).parent):
        with pytest.raises(
            RestoreError, match=rf"DataParallelTrainer\.restore\('{result.path}', train_loop_per_worker="
        ):
            tune.Tuner.restore(place, works)
    (trial,) = searched.glob("DataParallelTrainer_*")
    with pytest.raises(RestoreError, match=rf"Tuner\.restore\('{searched}'"):
        tune.Tuner.restore(trial, works)


def test_a_run_beside_a_search_of_the_same_name_is_found(searched: Path) -> None:
    result = failed_run(name="search", storage_path=str(searched.parent))
    assert DataParallelTrainer.restore(searched, works, run_config=INLINE).fit().path == result.path


def test_the_filesystem_of_a_run_is_given_to_restore() -> None:
    import fsspec

    given = {"storage_filesystem": fsspec.filesystem("memory"), "storage_path": f"memory://runs-{next(numbers)}"}
    result = failed_run(**given)
    assert "storage_filesystem=..." in result.how_to_continue
    trainer = DataParallelTrainer.restore(result.path, works, storage_filesystem=given["storage_filesystem"])
    assert trainer.run_config.storage_filesystem is given["storage_filesystem"]


# -- how to continue ----------------------------------------------------------------------


def test_the_last_line_of_an_error_says_how_to_continue(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrainingFailedError) as caught:
        quick_trainer(fails_late, inline=True, verbose=1).fit()
    assert caught.value.result is not None
    path = caught.value.result.path
    line = f"To continue: DataParallelTrainer.restore({path!r}, train_loop_per_worker=...).fit()"
    assert str(caught.value).splitlines()[-1] == line
    assert capsys.readouterr().out.splitlines()[-1] == line
    assert f"To continue: {Result.from_path(path).how_to_continue}" == line


def test_the_line_that_continues_a_run_names_the_code_in_its_settings() -> None:
    keeps = CheckpointConfig(num_to_keep=2)
    result = quick_trainer(
        fails_late, inline=True, callbacks=[Callback()], stop=lambda trial, row: False, checkpoint_config=keeps
    ).fit(raise_on_error=False)
    assert result.how_to_continue.endswith(
        "train_loop_per_worker=..., run_config=RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=2), verbose=0, "
        "stop=..., callbacks=..., engine='inline')).fit()"
    )


def test_the_last_line_after_an_interruption_says_how_to_continue(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        import os
        import signal

        session.report({"x": 1})
        os.kill(os.getpid(), signal.SIGINT)
        session.report({"x": 2})

    with pytest.raises(KeyboardInterrupt) as caught:
        quick_trainer(interrupted, inline=True, verbose=1, stop={"x": 9}).fit()
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed.startswith("To continue: DataParallelTrainer.restore(")
    assert str(caught.value).splitlines()[-1] == printed


def test_finished_runs_and_trials_have_nothing_to_continue(searched: Path) -> None:
    assert failed_run(works).how_to_continue == ""
    (trial,) = searched.glob("DataParallelTrainer_*")
    assert Result.from_path(trial).how_to_continue == ""


def with_rows() -> dict[str, Any]:
    rows = from_items([{"a": 1.0, "y": 0}, {"a": 2.0, "y": 1}])
    return {"datasets": {"train": rows}, "scaling_config": ScalingConfig(num_workers=1)}


@pytest.mark.parametrize(
    ("make", "again"),
    [
        (lambda: TorchTrainer(works, scaling_config=ScalingConfig(num_workers=1)), ["train_loop_per_worker=..."]),
        (lambda: DataParallelTrainer(works, **with_rows()), ["train_loop_per_worker=...", "datasets=..."]),
        (
            lambda: DataParallelTrainer(
                works, train_loop_config={"f": works}, scaling_config=ScalingConfig(num_workers=1)
            ),
            ["train_loop_per_worker=...", "train_loop_config=..."],
        ),
        (
            lambda: DataParallelTrainer(
                works, train_loop_config={"api_key": "x"}, scaling_config=ScalingConfig(num_workers=1)
            ),
            ["train_loop_per_worker=...", "train_loop_config=..."],
        ),
        (
            lambda: TransformersTrainer(
                lambda train_dataset, eval_dataset: None, scaling_config=ScalingConfig(num_workers=1)
            ),
            ["trainer_init_per_worker=..."],
        ),
        (lambda: XGBoostTrainer(params={}, label_column="y", **with_rows()), ["datasets=..."]),
        (
            lambda: LightGBMTrainer(params={}, label_column="y", callbacks=[works], **with_rows()),
            ["callbacks=...", "datasets=..."],
        ),
        (
            lambda: SklearnTrainer(
                estimator=LogisticRegression(), label_column="y", datasets={"train": from_items([{"a": 1.0, "y": 0}])}
            ),
            ["estimator=...", "datasets=..."],
        ),
        (lambda: _Own(), []),
    ],
)
def test_what_must_be_given_again(make: Any, again: list[str]) -> None:
    assert list(make().to_run_spec().again) == again


class _Own(BaseTrainer):
    def training_loop(self) -> None:
        session.report({"rows": len(self.datasets)})


def test_a_trainer_of_ones_own_is_asked_for_its_datasets_again() -> None:
    rows = from_items([{"a": 1}])
    path = _Own(datasets={"train": rows}, run_config=RunConfig(verbose=0, engine="inline")).fit().path
    with pytest.raises(RestoreError, match=r"datasets.*'train'"):
        _Own.restore(path)
    assert _Own.restore(path, datasets={"train": rows}, run_config=INLINE).fit().metrics["rows"] == 1


# -- changed code -------------------------------------------------------------------------


def test_changed_code_is_noticed_and_used(capsys: pytest.CaptureFixture[str]) -> None:
    """C7."""
    path = failed_run(name="changing").path
    with pytest.raises(RestoreError, match="works"):
        DataParallelTrainer.restore(path, works, allow_changed_code=False)
    run_config = RunConfig(verbose=1, engine="inline")
    DataParallelTrainer.restore(path, works, run_config=run_config).fit()
    printed = capsys.readouterr().out
    assert "Warning: What differs: code (new: works; gone: fails_late)." in printed


def test_the_same_code_is_not_worth_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    path = failed_run().path
    trainer = DataParallelTrainer.restore(
        path, fails_late, allow_changed_code=False, run_config=RunConfig(verbose=1, engine="inline")
    )
    trainer.fit(raise_on_error=False)
    assert "What differs: nothing known." in capsys.readouterr().out
    # What it was last started with counts: now both are known.
    DataParallelTrainer.restore(path, works, run_config=RunConfig(verbose=0, engine="inline"))


# -- fit(resume=...) ----------------------------------------------------------------------


def test_resume_continues_the_newest_run_that_did_not_finish() -> None:
    broken = failed_run(name="nightly", config={"x": 1})
    for _ in range(2):  # the second time there is nothing to continue, and a new run starts
        result = quick_trainer(works, inline=True, name="nightly", config={"x": 1}).fit(resume="auto")
        assert result.status == "finished"
        assert (result.path == broken.path) is (broken.status == "failed")
        broken.status = "finished"


def test_resume_must_have_something_to_continue() -> None:
    trainer = quick_trainer(works, inline=True, name="nightly")
    with pytest.raises(RestoreError, match="there is no run"):
        trainer.fit(resume="must")
    trainer.fit()
    with pytest.raises(RestoreError, match="have finished"):
        trainer.fit(resume="must")
    with pytest.raises(ConfigError, match="'auto', 'must'"):
        trainer.fit(resume="always")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"RunConfig\(name="):
        quick_trainer(works, inline=True).fit(resume="auto")


def test_resume_rejects_a_run_with_other_settings() -> None:
    path = failed_run(name="nightly", config={"x": 1, "deep": {"lr": 0.1}}).path
    with pytest.raises(RestoreError, match=r"train_loop_config\['deep'\]\['lr'\] \(0\.1 there, 0\.2 here\)"):
        quick_trainer(works, inline=True, name="nightly", config={"x": 1, "deep": {"lr": 0.2}}).fit(resume="auto")
    with pytest.raises(RestoreError, match=r"'extra'\] \(only here\)"):
        quick_trainer(works, inline=True, name="nightly", config={"x": 1, "deep": {"lr": 0.1}, "extra": 1}).fit(
            resume="must"
        )
    run_config = RunConfig(name="nightly", engine="inline", verbose=0)
    with pytest.raises(RestoreError, match="DataParallelTrainer there, _Own here"):
        _Own(run_config=run_config).fit(resume="auto")
    with pytest.raises(RestoreError, match=r"datasets \(\[\] there, \['train'\] here\)"):
        DataParallelTrainer(works, **with_rows(), train_loop_config={"x": 1}, run_config=run_config).fit(resume="auto")
    shutil.rmtree(path)


@pytest.mark.parametrize("name", ["nightly", "lr=0.1 of 50%"])
def test_resume_finds_runs_at_a_uri(name: str) -> None:
    place = {"name": name, "storage_path": f"memory://runs-{next(numbers)}"}
    broken = failed_run(**place)
    result = quick_trainer(works, inline=True, **place).fit(resume="must")
    assert (result.path, result.status) == (broken.path, "finished")


def test_a_run_with_a_name_that_is_rejected_now_is_restored(tmp_path: Path) -> None:
    earlier = quick_trainer(works, inline=True, storage_path=str(tmp_path))
    earlier.run_config.name = ".nightly"
    trainer = DataParallelTrainer.restore(earlier.fit().path, works)
    assert trainer.run_config.name == ".nightly"


# -- settings -----------------------------------------------------------------------------


def test_a_restored_trainer_has_all_the_settings(tmp_path: Path) -> None:
    """Those of every single field: tests/air/test_settings.py."""
    run_config = RunConfig(
        name="settings",
        storage_path=str(tmp_path),
        verbose=1,
        engine="inline",
        stop={"x": 7},
        log_to_file=("out", "err"),
        max_log_bytes=None,
        failure_config=FailureConfig(
            hang_timeout_s=77.0,
            heartbeat_timeout_s=None,
            start_timeout_s=78.0,
            stop_grace_s=1.5,
            max_attempts_without_progress=4,
        ),
        checkpoint_config=CheckpointConfig(
            num_to_keep=3, checkpoint_score_attribute="x", checkpoint_score_order="min", async_save=True
        ),
    )
    scaling = ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.5}, placement_strategy="SPREAD")
    trainer = DataParallelTrainer(fails_late, train_loop_config={}, scaling_config=scaling, run_config=run_config)
    result = trainer.fit(raise_on_error=False)
    assert result.error is not None
    restored = DataParallelTrainer.restore(result.path, works)
    assert stored(restored.run_config) == stored(run_config)
    assert stored(restored.scaling_config) == stored(scaling)
    assert restored.run_config.name == "settings"
    assert restored.run_config.log_to_file == ("out", "err")


def test_what_a_version_1_did_not_store_has_its_default() -> None:
    run = Path(__file__).parents[1] / "run" / "fixtures" / "journals_1" / "run_num_to_keep"
    restored = DataParallelTrainer.restore(run, works)
    assert restored.run_config.checkpoint_config == CheckpointConfig(
        num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"
    )
    assert restored.run_config.failure_config == FailureConfig(max_failures=1)
    assert restored.scaling_config == ScalingConfig(num_workers=1)
    assert restored.run_config.verbose == RunConfig().verbose


def test_a_run_of_a_later_version_is_rejected() -> None:
    run = Path(failed_run().path)
    journal = run / "journal.jsonl"
    records = [{**record, "version": VERSION + 1} if "version" in record else record for record in read(journal)]
    journal.unlink()
    writer = Journal(journal)
    for record in records:
        writer.append(record, finite=False)
    writer.close()
    for use in (Result.from_path, lambda path: DataParallelTrainer.restore(path, works)):
        with pytest.raises(RestoreError, match=r"newer version of paceline.*upgrade"):
            use(run)
    assert not DataParallelTrainer.can_restore(run)
