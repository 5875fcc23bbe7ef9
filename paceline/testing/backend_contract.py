"""What every backend must do, as one test class.

A backend's test module subclasses BackendContract. It supplies a collective, and a trainer for a small training
that follows a Lesson: it reports `loss` and a checkpoint after each epoch, and continues after the epoch of the
checkpoint that it is given::

    def sum_over_ranks(number: float) -> float:
        total = torch.tensor(number)
        torch.distributed.all_reduce(total)
        return total.item()


    def training(config: dict[str, Any]) -> None:
        lesson = config["lesson"]
        ...  # the model, and `done`, the last epoch of the checkpoint or 0
        lesson.begin(done)
        for epoch in range(done + 1, lesson.epochs + 1):
            lesson.before_epoch(epoch)
            ...  # learn
            session.report({"loss": loss}, checkpoint=...)
        lesson.end(weights)


    class TestMyBackend(BackendContract):
        sum_over_ranks = staticmethod(sum_over_ranks)

        def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
            return MyTrainer(training, train_loop_config={"lesson": lesson}, **settings)

Both functions are run in workers: keep them in a module that workers can import. ShortBackendContract is the part
that says most in the least time, for frameworks that take long to start.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig
from paceline.air.errors import TrainingFailedError, WorkerFailure
from paceline.run.backend import BackendConfig
from paceline.testing.backend_lesson import Lesson
from paceline.testing.invariants import check_run, journal_records
from paceline.testing.processes import Marks, wait_for
from paceline.testing.scripts import Action
from paceline.train.base_trainer import BaseTrainer

ENDLESS = 100_000
"""Epochs of a training that somebody stops."""
_KINDS = {"raise": "exception", "signal": "signal"}
START_S = 90.0
"""A guard against hanging; a framework may take its time to start."""


class BackendExperiment:
    """One fit of a backend's trainer: its marks, what came of it, and the check that nothing is left."""

    def __init__(self, contract: ShortBackendContract, folder: Path) -> None:
        self.marks = Marks(folder / "marks")
        self._contract = contract
        self._storage = folder / "storage"

    def trainer(
        self,
        *mishaps: Action | None,
        epochs: int,
        workers: int = 2,
        resume: Checkpoint | None = None,
        others_train: bool = False,
        stop: dict[str, Any] | None = None,
        **failure_config: Any,
    ) -> BaseTrainer:
        lesson = Lesson(str(self.marks.directory), epochs, self._contract.sum_over_ranks, mishaps, others_train)
        return self._contract.make_trainer(
            lesson,
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(
                storage_path=str(self._storage),
                verbose=0,
                stop=stop,
                checkpoint_config=CheckpointConfig(num_to_keep=2),
                failure_config=FailureConfig(**failure_config),
            ),
            resume_from_checkpoint=resume,
        )

    def succeed(self, *mishaps: Action | None, epochs: int, **settings: Any) -> Result:
        """fit() must reach the last epoch, with one more attempt for every mishap."""
        trainer = self.trainer(*mishaps, epochs=epochs, max_failures=len(mishaps), **settings)
        before = dict(os.environ)
        result = trainer.fit()
        assert dict(os.environ) == before, "fit() left the driver's environment changed"
        resumed = self.done_at_start(0)[0]
        check_run(result.path, result=result, iterations=epochs - resumed, attempts=len(mishaps) + 1)
        return result

    def done_at_start(self, rank: int) -> list[int]:
        """How many epochs each attempt of this rank had behind it."""
        return [mark["done"] for mark in self.marks.read("begun", rank=rank)]

    def causes(self, result: Result) -> list[tuple[int, str]]:
        """Rank and kind of what ended each attempt that failed, as the run wrote it down."""
        records = journal_records(Path(result.path))
        return [(record["rank"], record["cause"]) for record in records if record["kind"] == "failure"]

    def check_connected(self, workers: int) -> None:
        """Every rank got the sum over all of them."""
        totals = {mark["total"] for mark in self.marks.read("begun")}
        assert totals == {workers * (workers + 1) / 2}, f"the ranks are not connected: their sums are {totals}"

    def check_ranks_agree(self, workers: int) -> None:
        """They are connected, and the last attempt ended with the same weights on all."""
        self.check_connected(workers)
        ends = self.marks.read("end")
        assert sorted(mark["rank"] for mark in ends) == list(range(workers))
        assert ends[0]["weights"], "the training gave no weights"
        assert all(mark["weights"] == ends[0]["weights"] for mark in ends), "the ranks' weights differ"


class ShortBackendContract:
    """Subclasses supply `sum_over_ranks` and `make_trainer`."""

    mishaps: ClassVar[tuple[Action, ...]] = (
        Action("raise", 2, 1, "the culprit"),
        Action("signal", 3, 1, signal.SIGKILL),
    )
    """What happens to rank 1, once in each attempt; every one of them costs a start."""

    @staticmethod
    def sum_over_ranks(number: float) -> float:
        """Called in the workers, on all of them: the sum of every rank's number, through the framework."""
        raise NotImplementedError

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        """A trainer for the training that follows `lesson`; `settings` are arguments that every trainer has."""
        raise NotImplementedError

    @pytest.fixture
    def experiment(self, tmp_path: Path) -> BackendExperiment:
        return BackendExperiment(self, tmp_path)

    def test_what_the_backend_declares_has_the_right_form(self, experiment: BackendExperiment) -> None:
        config = experiment.trainer(epochs=1).to_run_spec().backend_config
        backend = config.backend_cls
        check_declared_types(config)
        assert all(phrase == phrase.lower() for phrase in backend.collateral_phrases)
        preloaded = {name.partition(".")[0] for name in backend.preload}
        for setter in backend.thread_setters:
            module, colon, function = setter.partition(":")
            assert colon, f"{setter} must be module:function"
            assert function.isidentifier()
            assert module.partition(".")[0] in preloaded, f"{setter} is called only where {module} is preloaded"
        assert backend.hint_for(WorkerFailure(0, "exception", "it broke")) == ""

    def test_what_fails_is_named_and_training_goes_on_from_the_checkpoint(self, experiment: BackendExperiment) -> None:
        """Each time with rank 0 inside a collective; the last attempt is through."""
        result = experiment.succeed(*self.mishaps, epochs=5)
        assert experiment.causes(result) == [(mishap.rank, _KINDS[mishap.do]) for mishap in self.mishaps]
        done = [0, *(mishap.iteration - 1 for mishap in self.mishaps)]
        assert [experiment.done_at_start(rank) for rank in (0, 1)] == [done, done]
        experiment.check_ranks_agree(2)
        assert _falls(result)


class BackendContract(ShortBackendContract):
    """The whole contract."""

    def test_ranks_are_connected_and_learn_the_same_and_a_checkpoint_continues(
        self, experiment: BackendExperiment
    ) -> None:
        """Two runs in one driver, the second from the first one's checkpoint."""
        result = experiment.succeed(epochs=4)
        experiment.check_ranks_agree(2)
        assert _falls(result)
        assert result.checkpoint is not None
        later = BackendExperiment(self, Path(result.path).parent / "later")
        later.succeed(epochs=6, resume=result.checkpoint)
        assert [later.done_at_start(rank) for rank in (0, 1)] == [[4], [4]]
        assert [mark["epoch"] for mark in later.marks.read("epoch", rank=1)] == [5, 6]
        later.check_ranks_agree(2)

    def test_one_worker_until_it_is_stopped(self, experiment: BackendExperiment) -> None:
        """The framework's own handling of exceptions lets the end through that report() raises."""
        result = experiment.trainer(epochs=6, workers=1, stop={"training_iteration": 3}).fit()
        check_run(result.path, result=result, iterations=3, attempts=1)
        assert [mark["epoch"] for mark in experiment.marks.read("epoch")] == [1, 2, 3]
        experiment.check_connected(1)
        assert _falls(result)
        assert result.checkpoint is not None

    def test_fit_raises_the_exception_of_the_rank_that_failed(self, experiment: BackendExperiment) -> None:
        with pytest.raises(TrainingFailedError) as caught:
            experiment.trainer(Action("raise", 2, 1, "the culprit"), epochs=4).fit()
        error = caught.value
        assert error.result is not None
        cause = {"rank": 1, "kind": "exception", "exception_type": "builtins.ValueError"}
        check_run(error.result.path, error=error, cause=cause, iterations=1, attempts=1)
        assert isinstance(error.__cause__, ValueError)
        assert error.__cause__.args == ("the culprit",)

    def test_rank_zero_may_be_killed_as_well(self, experiment: BackendExperiment) -> None:
        result = experiment.succeed(Action("signal", 2, 0, signal.SIGKILL), epochs=4)
        assert experiment.causes(result) == [(0, "signal")]
        assert experiment.done_at_start(1) == [0, 1]
        experiment.check_ranks_agree(2)

    def test_an_interrupt_ends_the_training_with_what_was_reached(self, experiment: BackendExperiment) -> None:
        over = threading.Event()

        def interrupt() -> None:
            wait_for(lambda: over.is_set() or experiment.marks.read("epoch", epoch=2), "the second epoch", START_S)
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGINT)

        watcher = threading.Thread(target=interrupt)
        watcher.start()
        try:
            with pytest.raises(KeyboardInterrupt) as caught:
                experiment.trainer(epochs=ENDLESS).fit()
        finally:
            over.set()
            watcher.join()
        result: Result = caught.value.result  # type: ignore[attr-defined]  # fit() has added it
        assert result.metrics is not None
        reported = result.metrics["training_iteration"]
        begun = len(experiment.marks.read("epoch", rank=0))
        assert begun - 1 <= reported <= begun
        check_run(result.path, result=result, iterations=reported, attempts=1)
        assert result.checkpoint is not None
        assert not experiment.causes(result)


def check_declared_types(config: BackendConfig) -> None:
    """Mistakes that a run would not notice: a missing comma makes a text of a tuple, and a module may be misspelled."""
    backend = config.backend_cls
    for name in ("preload", "thread_setters", "collateral_phrases"):
        value = getattr(backend, name)
        assert isinstance(value, tuple), f"{name} must be a tuple, not {value!r}"
        assert all(isinstance(text, str) and text for text in value), f"{name} must hold texts: {value!r}"
    for module in backend.preload:
        assert importlib.util.find_spec(module) is not None, f"preload names {module}, which cannot be imported"
    for name in ("fresh", "share_cuda_visible_devices", "hide_other_gpus", "one_machine"):
        assert isinstance(getattr(backend, name), bool), f"{name} must be True or False"
    for name, value in backend().environment(config).items():
        assert isinstance(name, str), f"environment(): {name!r} must be a text"
        assert isinstance(value, str), f"environment(): the value of {name} must be a text, not {value!r}"


def _falls(result: Result) -> bool:
    """Whether the loss is lower at the end than at the beginning."""
    assert result.metrics_dataframe is not None
    losses = list(result.metrics_dataframe["loss"])
    return bool(losses[-1] < losses[0])
