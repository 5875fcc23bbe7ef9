"""A causal language model trains through TransformersTrainer on two workers, and goes on after all kinds of ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # sets variables when it is imported, which no test shall be blamed for
import transformers
from accelerate.state import AcceleratorState, PartialState
from torch.utils.data import IterableDataset
from transformers import AutoModelForCausalLM, TrainerCallback, TrainingArguments

import paceline.data
from paceline import tune
from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.config import DataConfig, FailureConfig
from paceline.air.errors import RestoreError, TrainingFailedError
from paceline.air.result import Result
from paceline.testing.invariants import check_run
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.huggingface import (
    HuggingFaceTrainer,
    TransformersCheckpoint,
    TransformersPredictor,
    TransformersTrainer,
)
from tests.train.huggingface.tiny_language import language_model, small_trainer, token_accuracy, tokenized
from tests.train.preempting import preempt_first_attempt

TRAIN_ROWS, EVALUATION_ROWS, BATCH = 60, 27, 4
EPOCHS = {"logging_strategy": "epoch", "eval_strategy": "epoch", "save_strategy": "epoch"}
STEPS = {
    "logging_strategy": "steps",
    "save_strategy": "steps",
    "logging_steps": 1,
    "save_steps": 3,
    "lr_scheduler_type": "constant",
}


def fit(folder: Path, config: dict[str, Any], **arguments: Any) -> Result:
    run_config = RunConfig(storage_path=str(folder), verbose=0, **arguments.pop("run", {}))
    return TransformersTrainer(
        arguments.pop("function", small_trainer),
        trainer_init_config=config,
        datasets={
            "train": paceline.data.from_items(tokenized(TRAIN_ROWS)),
            "evaluation": paceline.data.from_items(tokenized(EVALUATION_ROWS, seed=1)),
        },
        dataset_config=DataConfig(shuffle="rows", seed=5),
        scaling_config=ScalingConfig(num_workers=arguments.pop("workers", 2)),
        run_config=run_config,
        **arguments,
    ).fit()


def losses(result: Result) -> list[float]:
    frame = result.metrics_dataframe
    assert frame is not None
    return [float(loss) for loss in frame["loss"]]


def sums(model: torch.nn.Module) -> list[float]:
    """A number for each parameter, equal for equal ones only."""
    return [float((each.detach().double() ** 2).sum()) for each in model.parameters()]


def trained_rows(result: Result) -> float:
    """By the trainer's own figures."""
    return float(result.metrics["train_samples_per_second"] * result.metrics["train_runtime"])


class WritesDown(TrainerCallback):
    """What each rank has at the end: weights and counts."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rows = kwargs["train_dataloader"].dataset
        self.facts: dict[str, Any] = {"rows": len(rows), "steps": state.max_steps, "workers": args.world_size}

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        facts = {**self.facts, "weights": sums(kwargs["model"])}
        Path("facts.json").write_text(json.dumps(facts), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transformers")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Result:
    """Two epochs on two workers."""
    return fit(folder, {**EPOCHS, "num_train_epochs": 2, "callbacks": [WritesDown]})


def test_the_loss_falls_and_ranks_agree(trained: Result) -> None:
    first, last = losses(trained)
    assert last < first - 0.1
    ranks = [json.loads(Path(trained.path, f"rank_{rank}", "facts.json").read_text("utf-8")) for rank in (0, 1)]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert [(rank["rows"], rank["workers"]) for rank in ranks] == [(30, 2), (30, 2)]
    assert ranks[0]["steps"] == 16  # 2 epochs of 8 steps: 30 rows in batches of 4


def test_one_row_per_epoch_has_everything_of_it(trained: Result) -> None:
    frame = trained.metrics_dataframe
    assert frame is not None
    assert list(frame["epoch"]) == [1.0, 2.0]
    assert list(frame["step"]) == [8, 16]
    assert frame["learning_rate"].iloc[1] < frame["learning_rate"].iloc[0]
    assert {"eval_loss", "eval_accuracy", "grad_norm"} <= set(frame.columns)
    assert trained_rows(trained) == pytest.approx(2 * TRAIN_ROWS, rel=0.01)
    assert trained.metrics["config"]["trainer_init_config"]["num_train_epochs"] == 2


def test_evaluation_is_that_of_a_single_process(trained: Result, tmp_path: Path) -> None:
    alone = transformers.Trainer(
        trained.checkpoint.get_model(AutoModelForCausalLM),
        TrainingArguments(str(tmp_path), use_cpu=True, per_device_eval_batch_size=BATCH, disable_tqdm=True),
        eval_dataset=tokenized(EVALUATION_ROWS, seed=1),
        compute_metrics=token_accuracy,
    ).evaluate()
    assert trained.metrics["eval_loss"] == pytest.approx(alone["eval_loss"], rel=1e-6)
    assert trained.metrics["eval_accuracy"] == alone["eval_accuracy"]


def test_checkpoints_are_complete_and_leave_no_copies(trained: Result) -> None:
    assert isinstance(trained.checkpoint, TransformersCheckpoint)
    assert [checkpoint.number for checkpoint, _ in trained.best_checkpoints] == [0, 1]
    state = json.loads(Path(str(trained.checkpoint.path), "trainer_state.json").read_text("utf-8"))
    assert state["global_step"] == 16
    files = {path.name for path in Path(str(trained.checkpoint.path)).iterdir()}
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"} <= files
    assert not list(Path(trained.path).glob("rank_*/transformers"))
    assert trained.checkpoint.get_training_arguments().learning_rate == 1e-2


def test_predictions_come_from_the_checkpoint(trained: Result) -> None:
    words = paceline.data.from_items([{"text": "the cat"}, {"text": "my horse"}, {"text": "a dog"}])
    predictor = BatchPredictor(trained.checkpoint, TransformersPredictor, task="text-generation")
    answers = predictor.predict(words, max_new_tokens=3, do_sample=False).take_all()
    assert [answer["generated_text"].startswith(("the cat", "my horse", "a dog")) for answer in answers] == [True] * 3
    assert all(len(answer["generated_text"].split()) > 2 for answer in answers)


def test_a_new_run_goes_on_at_the_next_epoch(trained: Result, folder: Path) -> None:
    config = {**EPOCHS, "num_train_epochs": 3}
    result = fit(folder, config, resume_from_checkpoint=trained.checkpoint)
    assert [(row["epoch"], row["step"]) for row in result.metrics_dataframe.to_dict("records")] == [(3.0, 24)]
    assert losses(result)[0] < losses(trained)[-1]


@pytest.mark.parametrize(
    ("changed", "workers"), [({}, 1), pytest.param({"per_device_train_batch_size": 8}, 2, marks=pytest.mark.slow)]
)
def test_steps_of_another_size_are_refused(
    changed: dict[str, Any], workers: int, trained: Result, folder: Path
) -> None:
    """Two workers had 8 steps per epoch, of 8 rows. Step 16 is then in no second epoch of 15 steps, or of 4."""
    config = {**EPOCHS, "num_train_epochs": 3, **changed}
    with pytest.raises(TrainingFailedError, match=rf"CheckpointError.* {workers} worker"):
        fit(folder, config, resume_from_checkpoint=trained.checkpoint, workers=workers)


@pytest.mark.slow
def test_steps_of_as_many_rows_go_on_with_other_workers(trained: Result, folder: Path) -> None:
    config = {**EPOCHS, "num_train_epochs": 3, "gradient_accumulation_steps": 2}
    result = fit(folder, config, resume_from_checkpoint=trained.checkpoint, workers=1)
    assert list(result.metrics_dataframe["step"]) == [24]
    assert list(result.metrics_dataframe["epoch"]) == [3.0]


@pytest.mark.slow
def test_weights_alone_are_trained_from_the_first_step(trained: Result, folder: Path) -> None:
    weights = TransformersCheckpoint.from_model(trained.checkpoint.get_model(AutoModelForCausalLM))
    anew = fit(folder, {**EPOCHS, "num_train_epochs": 1}, resume_from_checkpoint=weights, workers=1)
    assert list(anew.metrics_dataframe["step"]) == [15]
    assert losses(anew)[0] < losses(trained)[0] - 0.1


def test_nothing_left_to_train_is_told(trained: Result, folder: Path) -> None:
    result = fit(folder, {**EPOCHS, "num_train_epochs": 2}, resume_from_checkpoint=trained.checkpoint)
    assert result.metrics["step"] == 16
    assert any("num_train_epochs or max_steps" in warning for warning in result.warnings)


class IsKilledOnce(TrainerCallback):
    """Rank 1 dies in the middle of an epoch, between two checkpoints."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        mark = Path("was_killed")
        if session.get_world_rank() == 1 and state.global_step == 5 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Result:
    return fit(folder, {**STEPS, "max_steps": 10, "dropout": 0.1})


def test_a_killed_rank_costs_nothing_but_time(undisturbed: Result, folder: Path) -> None:
    """Same rows, same dropout, same rates after the retry in the middle of an epoch: the same losses."""
    config = {**STEPS, "max_steps": 10, "dropout": 0.1, "callbacks": [IsKilledOnce]}
    result = fit(folder, config, run={"failure_config": FailureConfig(max_failures=1)})
    assert Path(result.path, "rank_1", "was_killed").exists()
    assert losses(result) == losses(undisturbed)
    assert result.metrics["training_iteration"] == 10
    assert result.metrics["epoch"] == pytest.approx(1.25)
    assert trained_rows(undisturbed) == pytest.approx(10 * 2 * BATCH, rel=0.01)


@pytest.mark.slow
def test_steps_of_several_batches_and_a_last_one_that_is_dropped(folder: Path) -> None:
    """7 batches of each worker are 4 steps, and two rows are left over in each epoch: no epoch consists of those."""
    config = {**EPOCHS, "num_train_epochs": 3, "gradient_accumulation_steps": 2, "dataloader_drop_last": True}
    expected = fit(folder, config)
    killed = {**config, "callbacks": [IsKilledOnce]}
    result = fit(folder, killed, run={"failure_config": FailureConfig(max_failures=1)})
    assert Path(result.path, "rank_1", "was_killed").exists()
    assert list(result.metrics_dataframe["step"]) == [4, 8, 12]
    assert losses(result) == losses(expected)


def test_a_training_that_has_ended_within_an_epoch_goes_on_there(undisturbed: Result, folder: Path) -> None:
    config = {**STEPS, "dropout": 0.1}
    first = fit(folder, {**config, "max_steps": 5})
    longer = {**config, "max_steps": 10, "ignore_data_skip": True}  # which has no effect: nothing is read for it
    rest = fit(folder, longer, resume_from_checkpoint=first.checkpoint)
    assert losses(first) + losses(rest) == losses(undisturbed)


def test_a_stopped_run_has_its_last_state(undisturbed: Result, folder: Path) -> None:
    config = {**STEPS, "max_steps": 10, "dropout": 0.1, "eval_strategy": "steps"}
    stopped = fit(folder, config, run={"stop": {"training_iteration": 5}})
    assert losses(stopped) == losses(undisturbed)[:5]
    assert stopped.metrics["eval_loss"] > 0
    assert json.loads(Path(str(stopped.checkpoint.path), "trainer_state.json").read_text("utf-8"))["global_step"] == 5
    rest = fit(folder, config, resume_from_checkpoint=stopped.checkpoint)
    assert losses(rest) == losses(undisturbed)[5:]


def test_restore_asks_for_the_function(trained: Result) -> None:
    with pytest.raises(RestoreError, match="trainer_init_per_worker"):
        TransformersTrainer.restore(trained.path, datasets={"train": _no_rows, "evaluation": _no_rows})


def _no_rows() -> Any:
    raise AssertionError("a finished run reads no data")


def test_a_search_sets_items_of_the_config(folder: Path) -> None:
    trainer = HuggingFaceTrainer(
        small_trainer,
        trainer_init_config={**STEPS, "max_steps": 2},
        datasets={"train": paceline.data.from_items(tokenized(16))},
        scaling_config=ScalingConfig(num_workers=1),
    )
    results = tune.Tuner(
        trainer,
        param_space={"trainer_init_config": {"learning_rate": tune.grid_search([1e-4, 1e-1])}},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(storage_path=str(folder), verbose=0),
    ).fit()
    assert not results.errors
    assert results.get_best_result().config["trainer_init_config"] == {
        **STEPS,
        "max_steps": 2,
        "learning_rate": 1e-1,
    }


def own_datasets(train_dataset: Any, eval_dataset: Any, **config: Any) -> Any:
    assert train_dataset is None
    assert eval_dataset is None
    return small_trainer(tokenized(TRAIN_ROWS), tokenized(EVALUATION_ROWS, seed=1), **config)


def test_the_function_may_make_its_own_datasets(folder: Path) -> None:
    result = TransformersTrainer(
        own_datasets,
        trainer_init_config={**EPOCHS, "num_train_epochs": 1, "save_strategy": "no", "callbacks": [WritesDown]},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder), verbose=0),
    ).fit()
    ranks = [json.loads(Path(result.path, f"rank_{rank}", "facts.json").read_text("utf-8")) for rank in (0, 1)]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert ranks[0]["steps"] == 8
    saved = result.checkpoint.get_model(AutoModelForCausalLM)  # the last state is saved whatever the strategy
    assert sums(saved) == ranks[0]["weights"]


def sequence_trainer(train_dataset: Any, eval_dataset: Any, **config: Any) -> Any:
    return transformers.Seq2SeqTrainer(
        language_model(),
        transformers.Seq2SeqTrainingArguments("out", per_device_eval_batch_size=BATCH, **config),
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        compute_metrics=lambda predicted: {"rows": len(predicted.label_ids), **token_accuracy(predicted)},
    )


@pytest.mark.slow
def test_a_trainer_for_sequences_evaluates_each_row_once(folder: Path) -> None:
    """It gathers in its own way what the workers have evaluated."""
    config = {**EPOCHS, "save_strategy": "no", "num_train_epochs": 1, "learning_rate": 0.0}
    alone, together = (fit(folder, config, function=sequence_trainer, workers=workers).metrics for workers in (1, 2))
    assert (alone["eval_rows"], together["eval_rows"]) == (EVALUATION_ROWS, EVALUATION_ROWS)
    assert together["eval_loss"] == pytest.approx(alone["eval_loss"], rel=1e-6)
    assert together["eval_accuracy"] == alone["eval_accuracy"]


def failing(train_dataset: Any, eval_dataset: Any, **config: Any) -> Any:
    small_trainer(train_dataset, eval_dataset, **config)
    raise RuntimeError("after the arguments")


def test_one_worker_in_this_process_leaves_no_trace(folder: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)  # of other tests
    before, threads = dict(os.environ), torch.get_num_threads()
    for function in (small_trainer, failing):
        with pytest.raises(TrainingFailedError, match="after the") if function is failing else nullcontext():
            fit(folder, {**STEPS, "max_steps": 2}, function=function, workers=1, run={"engine": "inline"})
        assert dict(os.environ) == before
        assert torch.get_num_threads() == threads
        assert not torch.distributed.is_initialized()
        assert (AcceleratorState._shared_state, PartialState._shared_state) == ({}, {})


class Packed(IterableDataset[Any]):
    """Rows in another form, as users wrap datasets."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        yield from self.rows


def wrapping(train_dataset: Any, eval_dataset: Any, **config: Any) -> Any:
    return small_trainer(Packed(train_dataset), eval_dataset, **config)


def alone(train_dataset: Any, eval_dataset: Any, **config: Any) -> Any:
    os.environ["ACCELERATE_USE_CPU"] = "false"
    return small_trainer(train_dataset, eval_dataset, **STEPS)


def no_trainer(train_dataset: Any, eval_dataset: Any, **config: Any) -> Any:
    return torch.nn.Linear(1, 1)


def disagreeing(train_dataset: Any, eval_dataset: Any, **config: Any) -> Any:
    return small_trainer(train_dataset, eval_dataset, logging_strategy="epoch", save_strategy="steps")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_trainer, r"no_trainer\(\).*Linear.*transformers\.Trainer"),
        (disagreeing, "logging_strategy='steps' or save_strategy='epoch'"),
        (wrapping, "train_dataset.*Packed"),
        (alone, "2 worker.*TrainingArguments.*1 process"),
    ],
)
def test_mistakes_in_the_worker_are_told_before_training(folder: Path, function: Any, message: str) -> None:
    with pytest.raises(TrainingFailedError, match=message):
        fit(folder, {}, function=function)


class IsPreempted(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 4:
            preempt_first_attempt()


@pytest.mark.slow
def test_a_preempted_run_saves_at_that_step(tmp_path: Path) -> None:
    """Its strategy would save at the end only."""
    quiet = {**STEPS, "save_strategy": "no", "max_steps": 7}
    undisturbed = fit(tmp_path / "undisturbed", quiet)
    result = fit(tmp_path / "preempted", {**quiet, "callbacks": [IsPreempted]})
    check_run(result.path, result=result, attempts=2)
    assert losses(result) == pytest.approx(losses(undisturbed), nan_ok=True)
    assert result.metrics_dataframe is not None
    assert list(result.metrics_dataframe["step"]) == [1, 2, 3, 4, 5, 6, 7]
