"""One function on every worker: what it finds there, and what becomes of its reports."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import train
from paceline.air import Checkpoint, CheckpointConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, EngineError, MetricError, SerializationError, TrainingFailedError
from paceline.testing.invariants import check_run
from paceline.train import Backend, BackendConfig, DataParallelTrainer
from tests.train.quick import quick_trainer


def rank_rows(result: train.Result, *columns: str) -> list[tuple[Any, ...]]:
    """Columns of what every rank reported, in the order of iterations and ranks."""
    frame = result.rank_dataframe
    return list(frame[list(columns)].itertuples(index=False, name=None))


# -- what a worker finds ------------------------------------------------------------------


def test_three_generations_of_the_session_in_one_loop() -> None:
    def loop(config: dict[str, Any]) -> None:
        context = train.get_context()
        assert train.world_size() == session.get_world_size() == context.get_world_size() == 2
        assert train.world_rank() == session.get_world_rank() == context.get_world_rank()
        assert train.local_rank() == session.get_local_rank() == context.get_local_rank()
        assert session.get_local_world_size() == context.get_local_world_size() == 2
        assert [train.load_checkpoint(), session.get_checkpoint(), train.get_checkpoint()] == [None] * 3
        train.save_checkpoint(epoch=0, of="2.0")
        assert (train.load_checkpoint() or {})["of"] == "2.0"
        session.report({"epoch": 1}, checkpoint=Checkpoint.from_dict({"epoch": 1, "of": "AIR"}))
        newest = train.get_checkpoint()
        assert newest is not None
        assert newest.to_dict()["of"] == "AIR"
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "of.txt").write_text("2.7")
            train.report({"epoch": 2}, checkpoint=train.Checkpoint.from_directory(directory))
        newest = session.get_checkpoint()
        assert newest is not None
        with newest.as_directory() as directory:
            assert Path(directory, "of.txt").read_text() == "2.7"
        train.report(epoch=3, loss=0.5)
        assert session.get_dataset_shard("train") is train.get_dataset_shard() is None

    result = quick_trainer(loop, config={}).fit()
    check_run(result.path, result=result, iterations=4, attempts=1)
    assert (result.metrics["epoch"], result.metrics["loss"]) == (3, 0.5)
    assert [Path(str(checkpoint.path)).name for checkpoint, _ in result.best_checkpoints] == [
        f"checkpoint_00000{number}" for number in range(3)
    ]


def test_a_report_takes_a_dict_or_keywords_not_both() -> None:
    def loop() -> None:
        with pytest.raises(MetricError, match="not both"):
            train.report({"a": 1}, b=2)
        train.report({"a": 1})

    assert quick_trainer(loop).fit().rank_metrics == {0: {"a": 1}, 1: {"a": 1}}


def test_what_a_worker_knows_of_itself_and_its_run() -> None:
    def loop() -> None:
        resources = session.get_trial_resources()
        assert resources is not None
        session.report(
            {
                "cwd": os.getcwd(),
                "trial_dir": session.get_trial_dir(),
                "names": [session.get_experiment_name(), session.get_trial_name(), session.get_trial_id()],
                "bundles": len(resources.bundles),
                "node": [session.get_node_rank(), session.get_local_rank()],
                "metadata": session.get_metadata(),
                "main_thread": threading.current_thread() is threading.main_thread(),
                "run_id": os.environ["PACELINE_RUN_ID"],
            }
        )

    result = quick_trainer(loop, name="experiment", metadata={"owner": "me"}).fit()
    trial_id = result.metrics["trial_id"]
    for rank, found in result.rank_metrics.items():
        assert found["cwd"] == str(Path(result.path) / f"rank_{rank}")
        assert found["trial_dir"] == result.path
        assert found["names"] == ["experiment", f"DataParallelTrainer_{trial_id}", trial_id]
        assert found["bundles"] == 3  # the trainer's own and one per worker
        assert found["node"] == [0, rank]
        assert found["metadata"] == {"owner": "me"}
        assert found["main_thread"]
        assert found["run_id"] == result.metrics["experiment_id"]
    assert trial_id == f"{result.metrics['experiment_id'][:5]}_00000"


def test_files_with_relative_names_do_not_clash() -> None:
    def loop() -> None:
        Path("notes.txt").write_text(str(session.get_world_rank()))
        session.report({})

    result = quick_trainer(loop).fit()
    assert [Path(result.path, f"rank_{rank}", "notes.txt").read_text() for rank in (0, 1)] == ["0", "1"]


def test_the_function_gets_a_copy_of_the_config() -> None:
    def loop(config: dict[str, Any]) -> None:
        config["changed"] = True
        session.report({"got": config["lr"]})

    given = {"lr": 0.1}
    result = quick_trainer(loop, config=given).fit()
    assert result.metrics["got"] == 0.1
    assert result.metrics["config"] == result.config == {"train_loop_config": {"lr": 0.1}}
    assert given == {"lr": 0.1}


def test_a_config_that_the_function_does_not_take_is_warned_about() -> None:
    def loop() -> None:
        session.report({"got": None})

    with pytest.warns(UserWarning, match=r"loop\(\) takes no argument") as caught:
        trainer = DataParallelTrainer(
            loop,
            train_loop_config={"lr": 0.1},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=train.RunConfig(verbose=0),
        )
    assert [warning.filename for warning in caught] == [__file__]
    result = trainer.fit()
    assert result.metrics["got"] is None
    assert result.config == {"train_loop_config": {"lr": 0.1}}


def test_a_config_may_hold_what_is_no_plain_data() -> None:
    def loop(config: dict[str, Any]) -> None:
        for step in range(2):
            value = config["function"](step)
            session.report({"value": value}, checkpoint=Checkpoint.from_dict({"value": value}))

    result = quick_trainer(loop, config={"function": lambda step: step + 0.5, "kind": Path}).fit()
    check_run(result.path, result=result, iterations=2)
    assert result.metrics["value"] == 1.5
    assert result.config is not None
    assert result.config["train_loop_config"]["kind"] is Path
    read = train.Result.from_path(result.path)
    assert [row["value"] for _, row in read.best_checkpoints] == [0.5, 1.5]


def test_without_a_config_there_is_an_empty_one() -> None:
    def loop(config: dict[str, Any]) -> None:
        session.report({"keys": len(config)})

    result = quick_trainer(loop).fit()
    assert (result.metrics["keys"], result.metrics["config"]) == (0, {})


def test_what_the_function_returns_is_dropped() -> None:
    def loop() -> Any:
        session.report({})
        return threading.Lock()  # cannot be pickled

    assert quick_trainer(loop).fit().error is None


def test_a_function_that_never_reports() -> None:
    result = quick_trainer(lambda: None).fit()
    assert result.error is None
    assert result.checkpoint is None
    assert result.metrics_dataframe.empty
    assert result.metrics["done"] is True


# -- reports of several ranks -------------------------------------------------------------


def test_rank_zero_is_the_row_and_all_ranks_are_kept() -> None:
    def loop() -> None:
        rank = session.get_world_rank()
        for step in range(3):
            session.report({"step": step, "loss": 10 * rank + step})

    result = quick_trainer(loop, workers=3).fit()
    assert result.metrics_dataframe["loss"].tolist() == [0, 1, 2]
    assert result.rank_metrics == {rank: {"step": 2, "loss": 10 * rank + 2} for rank in range(3)}
    assert rank_rows(result, "training_iteration", "rank", "loss") == [
        (step + 1, rank, 10 * rank + step) for step in range(3) for rank in range(3)
    ]


def test_values_reduced_over_ranks() -> None:
    def loop() -> None:
        rank = session.get_world_rank()
        for step in range(2):
            reduced = session.report(
                {"loss": float(rank + step), "n": 10, "rank": rank}, reduce={"loss": "mean", "n": "sum"}
            )
            assert reduced == {"loss": 1.0 + step, "n": 30}
        assert session.report({"plain": rank}) is None

    result = quick_trainer(loop, workers=3).fit()
    rows = result.metrics_dataframe
    assert rows["loss"].tolist()[:2] == [1.0, 2.0]
    assert rows["n"].tolist()[:2] == [30, 30]
    assert rows["rank"].tolist()[:2] == [0, 0]  # what is not reduced is rank 0's
    own = result.rank_dataframe
    assert own[own["training_iteration"] == 1]["loss"].tolist() == [0.0, 1.0, 2.0]


def test_a_reduction_goes_with_a_checkpoint_and_decides_about_the_stop() -> None:
    def loop() -> None:
        for step in range(10):
            value = float(step + session.get_world_rank())
            session.report({"mean": value}, checkpoint=Checkpoint.from_dict({"step": step}), reduce={"mean": "mean"})

    result = quick_trainer(loop, stop={"mean": 2.5}).fit()
    check_run(result.path, result=result, iterations=3)
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 2
    assert result.best_checkpoints[-1][1]["mean"] == 2.5


@pytest.mark.parametrize("missing", ["other keys", "no reduction", "no report"])
@pytest.mark.parametrize("lonely", [0, 1])
def test_a_reduction_that_a_rank_does_not_take_part_in_fails_at_once(missing: str, lonely: int) -> None:
    def loop(config: dict[str, Any]) -> None:
        session.report({"loss": 1.0})
        if session.get_world_rank() != config["lonely"]:
            session.report({"loss": 1.0}, reduce={"loss": "mean"})
        elif config["missing"] == "other keys":
            session.report({"loss": 1.0, "n": 1}, reduce={"n": "sum"})
        elif config["missing"] == "no reduction":
            session.report({"loss": 1.0})

    with pytest.raises(TrainingFailedError) as caught:
        quick_trainer(loop, config={"missing": missing, "lonely": lonely}).fit()
    told = str(caught.value)
    assert "reduce" in told or "unequally often" in told
    assert caught.value.result is not None
    check_run(caught.value.result.path, error=caught.value, attempts=1)


def test_only_rank_zero_may_report_and_save() -> None:
    def loop() -> None:
        if session.get_world_rank() == 0:
            for step in range(2):
                session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    result = quick_trainer(loop).fit()
    check_run(result.path, result=result, iterations=2)
    assert [warning for warning in result.warnings if "Only rank 0" in warning]
    assert list(result.rank_metrics) == [0]


# -- checkpoints of several ranks ---------------------------------------------------------


def test_every_rank_finds_the_checkpoint_that_was_just_reported() -> None:
    def loop() -> None:
        rank = session.get_world_rank()
        for step in range(3):
            session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step, "rank": rank}))
            newest = session.get_checkpoint()
            assert newest is not None
            found = newest.to_dict()
            assert found["rank"] == 0
            assert found["step"] >= step  # a rank that lags behind may find a newer one
            assert found["_current_checkpoint_id"] == found["step"]
        session.report({"found": found["step"]})

    result = quick_trainer(loop).fit()
    assert [metrics["found"] for metrics in result.rank_metrics.values()] == [2, 2]


def test_a_checkpoint_of_rank_zero_alone() -> None:
    def loop() -> None:
        for step in range(3):
            checkpoint = Checkpoint.from_dict({"step": step}) if session.get_world_rank() == 0 else None
            session.report({"step": step}, checkpoint=checkpoint)

    result = quick_trainer(loop).fit()
    check_run(result.path, result=result, iterations=3)
    assert len(result.best_checkpoints) == 3


def test_a_checkpoint_of_another_rank_is_not_the_runs() -> None:
    def loop() -> None:
        checkpoint = Checkpoint.from_dict({"mine": 1}) if session.get_world_rank() == 1 else None
        session.report({}, checkpoint=checkpoint)
        assert session.get_checkpoint() is None

    result = quick_trainer(loop).fit()
    check_run(result.path, result=result, iterations=1)
    assert result.checkpoint is None


@pytest.mark.parametrize("async_save", [False, True])
def test_a_committed_checkpoint_may_be_reported_again(async_save: bool, tmp_path: Path) -> None:
    """Its directory is never taken away, also where directories are taken over."""

    def loop() -> None:
        given = session.get_checkpoint()
        for _ in range(3):
            session.report({}, checkpoint=given)
        session.report({"barrier": 1}, reduce={"barrier": "sum"})
        newest = session.get_checkpoint()
        assert newest is not None
        session.report({}, checkpoint=newest)

    earlier = quick_trainer(
        lambda: session.report({}, checkpoint=Checkpoint.from_dict({"kept": "content"})), workers=1
    ).fit()
    plain = Checkpoint.from_dict({"kept": "content"}).to_directory(tmp_path / "plain")
    for resume in (earlier.checkpoint, plain):
        result = quick_trainer(loop, resume=resume, checkpoint_config=CheckpointConfig(async_save=async_save)).fit()
        check_run(result.path, result=result, iterations=5)
        assert [checkpoint.to_dict()["kept"] for checkpoint, _ in result.best_checkpoints] == ["content"] * 4
    check_run(earlier.path, result=earlier, iterations=1)
    assert Checkpoint.from_directory(plain).to_dict()["kept"] == "content"


def save_own_files(config: dict[str, Any]) -> None:
    """Each rank saves a file of its own, and one whose content is the same or not."""
    rank = session.get_world_rank()
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as directory:  # in the trial: a killed worker removes nothing
        Path(directory, f"part_{rank}.txt").write_text(str(rank))
        Path(directory, "common.txt").write_text("same" if config["agree"] else str(rank))
        session.report({}, checkpoint=Checkpoint.from_directory(directory))
    newest = session.get_checkpoint()
    assert newest is not None
    with newest.as_directory() as merged:
        session.report({"files": sorted(path.name for path in Path(merged).glob("*.txt"))})


def test_files_of_all_ranks_are_merged() -> None:
    result = quick_trainer(
        save_own_files, workers=3, config={"agree": True}, checkpoint_config=CheckpointConfig(keep_all_ranks=True)
    ).fit()
    check_run(result.path, result=result, iterations=2)
    merged = ["common.txt", "part_0.txt", "part_1.txt", "part_2.txt"]
    assert [metrics["files"] for metrics in result.rank_metrics.values()] == [merged] * 3


def test_files_of_two_ranks_that_differ_are_refused() -> None:
    with pytest.raises(TrainingFailedError, match=r"common\.txt") as caught:
        quick_trainer(
            save_own_files, config={"agree": False}, checkpoint_config=CheckpointConfig(keep_all_ranks=True)
        ).fit()
    result = caught.value.result
    assert result is not None
    assert result.checkpoint is None
    check_run(result.path, error=caught.value, attempts=1)


@pytest.mark.parametrize("without", [0, 1])
def test_merging_waits_for_no_rank_that_brings_nothing(without: int) -> None:
    def loop(config: dict[str, Any]) -> None:
        rank = session.get_world_rank()
        checkpoint = None if rank == config["without"] else Checkpoint.from_dict({"rank": rank})
        session.report({}, checkpoint=checkpoint)

    trainer = quick_trainer(loop, config={"without": without}, checkpoint_config=CheckpointConfig(keep_all_ranks=True))
    with pytest.raises(TrainingFailedError, match=f"rank {without}"):
        trainer.fit()


# -- checkpoints in the background --------------------------------------------------------


@pytest.mark.parametrize("form", ["dict", "directory"])
def test_background_checkpoints_are_all_there_in_order(form: str) -> None:
    def loop(config: dict[str, Any]) -> None:
        for step in range(6):
            if config["form"] == "dict":
                checkpoint = Checkpoint.from_dict({"step": step})
            else:
                Path("scratch").mkdir()
                Path("scratch", "step.txt").write_text(str(step))
                checkpoint = Checkpoint.from_directory("scratch")
            session.report({"step": step}, checkpoint=checkpoint)
            if session.get_world_rank() != 0 and Path("scratch").exists():
                Path("scratch", "step.txt").unlink()
                Path("scratch").rmdir()

    result = quick_trainer(loop, config={"form": form}, checkpoint_config=CheckpointConfig(async_save=True)).fit()
    check_run(result.path, result=result, iterations=6, attempts=1)
    assert [checkpoint.number for checkpoint, _ in result.best_checkpoints] == list(range(6))
    assert [row["step"] for _, row in result.best_checkpoints] == list(range(6))
    for step, (checkpoint, _) in enumerate(result.best_checkpoints):
        with checkpoint.as_directory() as directory:
            found = checkpoint.to_dict()["step"] if form == "dict" else int(Path(directory, "step.txt").read_text())
        assert found == step


def test_background_checkpoints_reach_every_rank() -> None:
    def loop() -> None:
        for step in range(4):
            session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
        session.report({"last": 1}, reduce={"last": "sum"})  # all ranks have saved; at most two are in flight
        newest = session.get_checkpoint()
        assert newest is not None
        assert newest.to_dict()["step"] >= 1

    result = quick_trainer(loop, checkpoint_config=CheckpointConfig(async_save=True, num_to_keep=2)).fit()
    check_run(result.path, result=result, iterations=5)


def test_background_saving_stops_where_it_was_asked_to() -> None:
    def loop() -> None:
        for step in range(10):
            session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    result = quick_trainer(loop, stop={"step": 3}, checkpoint_config=CheckpointConfig(async_save=True)).fit()
    check_run(result.path, result=result, iterations=4)
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == 3


# -- what cannot work ---------------------------------------------------------------------


def two_arguments(config: dict[str, Any], other: int) -> None:
    raise AssertionError


def keyword_only(*, lr: float) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"train_loop_per_worker": two_arguments}, "two_arguments"),
        ({"train_loop_per_worker": keyword_only}, "no argument or one"),
        ({"train_loop_per_worker": 7}, "must be a function, not int"),
        ({"train_loop_per_worker": None}, "without calling it"),
        ({"train_loop_config": [1]}, "train_loop_config must be a dict"),
        ({"backend_config": "torch"}, "backend_config must be a BackendConfig"),
        ({"scaling_config": {"num_workers": 2}}, "scaling_config must be a ScalingConfig"),
        ({"run_config": "name"}, "run_config must be a RunConfig"),
        ({"datasets": [1]}, "datasets must be a dict"),
        ({"resume_from_checkpoint": {"epoch": 1}}, "must be a Checkpoint or a path"),
        (
            {"run_config": train.RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=2))},
            "your function decides when to checkpoint",
        ),
        (
            {"run_config": train.RunConfig(checkpoint_config=CheckpointConfig(checkpoint_at_end=True))},
            "checkpoint_at_end",
        ),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_construction(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        DataParallelTrainer(**{"train_loop_per_worker": lambda: None, **arguments})


def test_how_many_workers_must_be_known_by_the_time_of_fit(results_dir: Path) -> None:
    trainer = DataParallelTrainer(lambda: None)
    with pytest.raises(ConfigError, match=r"num_workers=2"):
        trainer.fit()
    assert not results_dir.exists()


def test_what_cannot_travel_is_refused_before_anything_is_written(results_dir: Path) -> None:
    lock = threading.Lock()

    def loop() -> None:
        with lock:
            pass

    with pytest.raises(SerializationError, match="lock"):
        quick_trainer(loop).fit()
    assert not results_dir.exists()


def test_training_loop_is_not_for_this_trainer() -> None:
    class Confused(DataParallelTrainer):
        def training_loop(self) -> None:
            raise AssertionError

    with pytest.raises(ConfigError, match="Derive from BaseTrainer"):
        Confused(lambda: None, scaling_config=ScalingConfig(num_workers=1))


# -- backends -----------------------------------------------------------------------------


def remember(key: str, value: str) -> None:
    os.environ[key] = value


def recall(key: str) -> str | None:
    return os.environ.get(key)


class NotingBackend(Backend):
    calls: list[str] = []

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        self.calls.append("start")
        worker_group.execute(remember, "NOTE", "of the backend")

    def on_training_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        self.calls.append("training start")
        assert worker_group.execute(recall, "NOTE") == ["of the backend"] * 2

    def on_shutdown(self, worker_group: Any, backend_config: BackendConfig) -> None:
        self.calls.append("shutdown")
        assert worker_group.execute_single(1, recall, "NOTE") == "of the backend"

    def on_end(self) -> None:
        self.calls.append("end")


class NotingConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return NotingBackend


class BrokenBackend(NotingBackend):
    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        raise EngineError("no free port")


class BrokenConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return BrokenBackend


def test_a_backend_of_the_users_own() -> None:
    NotingBackend.calls.clear()
    result = quick_trainer(lambda: session.report({"note": recall("NOTE")}), backend=NotingConfig()).fit()
    assert NotingBackend.calls == ["start", "training start", "shutdown", "end"]
    assert [metrics["note"] for metrics in result.rank_metrics.values()] == ["of the backend"] * 2


def test_a_backend_is_told_of_the_end_of_every_attempt() -> None:
    NotingBackend.calls.clear()
    twice = train.FailureConfig(max_failures=1)
    trainer = quick_trainer(lambda: {}["nothing"], backend=NotingConfig(), failure_config=twice)
    with pytest.raises(TrainingFailedError, match="KeyError"):
        trainer.fit()
    assert NotingBackend.calls == ["start", "training start", "end"] * 2


def test_a_backend_that_cannot_start_fails_the_run_once() -> None:
    NotingBackend.calls.clear()
    trainer = quick_trainer(lambda: None, backend=BrokenConfig(), failure_config=train.FailureConfig(max_failures=3))
    with pytest.raises(TrainingFailedError, match="no free port") as caught:
        trainer.fit()
    assert len(caught.value.failures) == 1
    assert NotingBackend.calls == ["end"]


# -- engines ------------------------------------------------------------------------------


def report_process(config: dict[str, Any]) -> None:
    start = train.load_checkpoint() or {"step": -1}
    for step in range(start["step"] + 1, 3):
        session.report({"step": step, "pid": os.getpid()}, checkpoint=Checkpoint.from_dict({"step": step}))


def assert_same_as_everywhere(result: train.Result) -> None:
    check_run(result.path, result=result, iterations=3, attempts=1)
    assert result.metrics_dataframe["step"].tolist() == [0, 1, 2]
    assert [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints] == [0, 1, 2]
    assert (Path(result.path) / "progress.csv").exists()


@pytest.mark.parametrize("engine", ["local", "inline"])
def test_the_same_loop_on_every_engine(engine: str) -> None:
    result = quick_trainer(report_process, workers=1, config={}, engine=engine).fit()
    assert_same_as_everywhere(result)
    assert (result.metrics["pid"] == os.getpid()) is (engine == "inline")


def test_inline_has_one_worker(results_dir: Path) -> None:
    with pytest.raises(ConfigError, match="engine='local'"):
        quick_trainer(lambda: None, workers=2, engine="inline").fit()


def test_inline_stops_and_fails_like_the_others() -> None:
    def endless() -> None:
        while True:
            session.report({"rows": 1})

    stopped = quick_trainer(endless, workers=1, engine="inline", stop={"training_iteration": 5}).fit()
    check_run(stopped.path, result=stopped, iterations=5)

    def broken() -> None:
        session.report({})
        raise ValueError("inline")

    with pytest.raises(TrainingFailedError) as caught:
        quick_trainer(broken, workers=1, engine="inline").fit()
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.fixture
def uninitialized() -> Any:
    paceline.shutdown()
    yield
    paceline.shutdown()


def test_init_declares_the_default_engine(uninitialized: None) -> None:
    assert not paceline.is_initialized()
    paceline.init(engine="inline", num_cpus=1)
    assert paceline.is_initialized()
    with pytest.raises(EngineError, match="shutdown"):
        paceline.init()
    result = quick_trainer(report_process, workers=1, config={}).fit()
    assert result.metrics["pid"] == os.getpid()
    explicit = quick_trainer(report_process, workers=1, config={}, engine="local").fit()
    assert explicit.metrics["pid"] != os.getpid()
    paceline.shutdown()
    assert not paceline.is_initialized()
    assert_same_as_everywhere(quick_trainer(report_process, workers=1, config={}).fit())


def test_the_environment_chooses_an_engine(uninitialized: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_ENGINE", "inline")
    result = quick_trainer(report_process, workers=1, config={}).fit()
    assert result.metrics["pid"] == os.getpid()


@pytest.mark.parametrize("name", ["ray", "slurm"])
def test_an_engine_that_there_is_not(name: str) -> None:
    with pytest.raises(ConfigError, match="local"):
        quick_trainer(lambda: None, engine=name).fit()


def test_a_trainer_can_be_fitted_again() -> None:
    trainer = quick_trainer(report_process, config={}, name="twice")
    first, second = trainer.fit(), trainer.fit()
    assert first.path != second.path
    assert Path(first.path).parent == Path(second.path).parent
    assert first.metrics_dataframe["step"].tolist() == second.metrics_dataframe["step"].tolist() == [0, 1, 2]


def test_many_workers_on_few_cores() -> None:
    result = quick_trainer(lambda: session.report({"size": session.get_world_size()}), workers=8).fit()
    assert [metrics["size"] for metrics in result.rank_metrics.values()] == [8] * 8
