"""A transformers.Trainer of the user's own inside of a train function: prepare_trainer and ReportCallback."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo  # sets variables when it is imported, which no test shall be blamed for
import transformers
from transformers import GPT2LMHeadModel, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback

import paceline.data
from paceline import train
from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.config import DataConfig, FailureConfig
from paceline.air.errors import ConfigError, WorkerFailure
from paceline.air.result import Result
from paceline.data.ingest.prepare import prepared
from paceline.data.iterator import DataIterator
from paceline.train.huggingface.backend import TransformersBackend, TransformersConfig
from paceline.train.huggingface.transformers import ReportCallback, TransformersCheckpoint, prepare_trainer
from paceline.train.torch import TorchTrainer
from tests.train.huggingface.tiny_language import language_model, token_accuracy, tokenized

EVALUATION_ROWS, BATCH = 27, 4


class IsKilledOnce(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        mark = Path("was_killed")
        if session.get_world_rank() == 1 and state.global_step == 5 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def train_func(config: dict[str, Any]) -> None:
    arguments = TrainingArguments("out", learning_rate=1e-2, **config["arguments"])
    trainer = transformers.Trainer(
        language_model(dropout=0.1),
        arguments,
        train_dataset=train.get_dataset_shard("train").iter_torch_batches(
            batch_size=BATCH, drop_last=config["drop_last"]
        ),
        eval_dataset=train.get_dataset_shard("evaluation").iter_torch_batches(batch_size=BATCH),
        compute_metrics=token_accuracy,
        callbacks=[ReportCallback(), *([IsKilledOnce()] if config["kill"] else [])],
    )
    trainer = prepare_trainer(trainer)
    checkpoint = train.get_checkpoint()
    if checkpoint is None:
        figures = trainer.train().metrics
        Path("trained_rows").write_text(str(figures["train_samples_per_second"] * figures["train_runtime"]), "utf-8")
        return
    with checkpoint.as_directory() as folder:
        trainer.train(resume_from_checkpoint=os.path.join(folder, ReportCallback.CHECKPOINT_NAME))


STEPS = {"max_steps": 10, "logging_steps": 1, "save_steps": 3, "eval_strategy": "steps"}


def fit(folder: Path, kill: bool, arguments: dict[str, Any] = STEPS, drop_last: bool = False) -> Result:
    return TorchTrainer(
        train_func,
        train_loop_config={"kill": kill, "arguments": arguments, "drop_last": drop_last},
        torch_config=TransformersConfig(),  # workers that have Transformers loaded: that saves the test seconds
        datasets={
            "train": paceline.data.from_items(tokenized(60)),
            "evaluation": paceline.data.from_items(tokenized(EVALUATION_ROWS, seed=1)),
        },
        dataset_config=DataConfig(shuffle="rows", seed=5),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder), verbose=0, failure_config=FailureConfig(max_failures=1)),
    ).fit()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return fit(tmp_path_factory.mktemp("prepared"), kill=False)


def test_each_saved_checkpoint_is_reported_with_what_was_logged(undisturbed: Result) -> None:
    frame = undisturbed.metrics_dataframe
    assert frame is not None
    assert list(frame["step"]) == [3, 6, 9, 10]
    assert list(frame["epoch"]) == [0.375, 0.75, 1.125, 1.25]  # 30 rows of each worker are 8 batches
    assert frame["loss"].iloc[-1] < frame["loss"].iloc[0]
    assert isinstance(undisturbed.checkpoint, TransformersCheckpoint)
    files = Path(str(undisturbed.checkpoint.path), "checkpoint")
    assert json.loads((files / "trainer_state.json").read_text("utf-8"))["global_step"] == 10
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in files.iterdir()}
    rows = float(Path(undisturbed.path, "rank_0", "trained_rows").read_text("utf-8"))
    assert rows == pytest.approx(10 * 2 * BATCH, rel=0.01)


def test_only_rank_0_shows_bars_and_logs(undisturbed: Result) -> None:
    shown, hidden = (Path(undisturbed.path, "logs", f"rank_{rank}.log").read_text("utf-8") for rank in (0, 1))
    for part in ("/10 [", "{'loss'", "{'eval_loss'"):
        assert part in shown
        assert part not in hidden


def test_evaluation_is_that_of_a_single_process(undisturbed: Result, tmp_path: Path) -> None:
    alone = transformers.Trainer(
        undisturbed.checkpoint.get_model(GPT2LMHeadModel),
        TrainingArguments(str(tmp_path), use_cpu=True, per_device_eval_batch_size=BATCH, disable_tqdm=True),
        eval_dataset=tokenized(EVALUATION_ROWS, seed=1),
        compute_metrics=token_accuracy,
    ).evaluate()
    assert undisturbed.metrics["eval_loss"] == pytest.approx(alone["eval_loss"], rel=1e-6)
    assert undisturbed.metrics["eval_accuracy"] == alone["eval_accuracy"]


def test_a_killed_rank_costs_nothing_but_time(undisturbed: Result, tmp_path: Path) -> None:
    result = fit(tmp_path, kill=True)
    assert Path(result.path, "rank_1", "was_killed").exists()
    expected, found = undisturbed.metrics_dataframe, result.metrics_dataframe
    assert expected is not None
    assert found is not None
    columns = ["step", "epoch", "loss", "eval_loss"]
    assert found[columns].to_dict("list") == expected[columns].to_dict("list")
    model, other = (each.checkpoint.get_model(GPT2LMHeadModel) for each in (undisturbed, result))
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.slow
def test_a_dropped_batch_is_no_epoch_of_its_own(tmp_path: Path) -> None:
    """Evaluation and checkpoints at the ends of epochs, logs at steps: in a function of one's own they may differ."""
    arguments: dict[str, Any] = {"num_train_epochs": 3, "gradient_accumulation_steps": 2, "logging_steps": 3}
    arguments |= {"eval_strategy": "epoch", "save_strategy": "epoch"}
    expected, found = (
        fit(tmp_path / str(kill), kill, arguments, drop_last=True).metrics_dataframe for kill in (False, True)
    )
    assert list(tmp_path.glob("True/**/was_killed"))
    (rows,) = tmp_path.glob("False/**/rank_0/trained_rows")
    assert float(rows.read_text("utf-8")) == pytest.approx(3 * 60, rel=0.01)
    assert list(found["step"]) == [4, 8, 12]  # 7 whole batches of each worker per epoch
    assert list(found["eval_loss"]) == list(expected["eval_loss"])


def own_trainer(dataset: Any, folder: Path, **arguments: Any) -> transformers.Trainer:
    return transformers.Trainer(
        language_model(), TrainingArguments(str(folder), max_steps=3, use_cpu=True, **arguments), **dataset
    )


def test_loggers_and_strategies_are_the_users_own(tmp_path: Path) -> None:
    logger = object.__new__(TensorBoardCallback)  # without the import of TensorBoard
    trainer = own_trainer({}, tmp_path, save_strategy="epoch", logging_steps=7, report_to="none")
    trainer.add_callback(logger)
    assert logger in prepare_trainer(trainer).callback_handler.callbacks


def test_datasets_that_would_be_counted_wrong_are_refused(tmp_path: Path) -> None:
    dataset = paceline.data.from_items([{"x": 1}] * 8)
    shard = DataIterator.over(dataset)
    with pytest.raises(ConfigError, match=r"training set.*size"):
        prepare_trainer(own_trainer({"train_dataset": shard.iter_torch_batches(batch_size=None)}, tmp_path))
    with pytest.raises(ConfigError, match=r"evaluation set.*size"):
        prepare_trainer(own_trainer({"eval_dataset": shard.iter_torch_batches(batch_size=None)}, tmp_path))
    with pytest.raises(ConfigError, match=r"every worker.*all rows"):
        prepare_trainer(own_trainer({"eval_dataset": dataset.iter_torch_batches(batch_size=2)}, tmp_path))


def test_a_trainer_that_was_not_prepared_says_so(tmp_path: Path) -> None:
    batches = DataIterator.over(paceline.data.from_items(tokenized(8))).iter_torch_batches(batch_size=4)
    quiet = {"disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False}
    trainer = own_trainer({"train_dataset": batches, "eval_dataset": batches}, tmp_path, **quiet)
    for not_prepared in (trainer.train, trainer.evaluate):
        with pytest.raises(ConfigError, match="without a DataLoader") as caught:
            not_prepared()
        failure = WorkerFailure(0, "exception", f"ConfigError: {caught.value}")
        hint = TransformersBackend.hint_for(failure)  # fit() shows it
        assert re.search(r"prepare_trainer\(trainer\).*paceline\.train\.huggingface", hint)


def test_a_shard_inside_of_another_dataset_is_refused(tmp_path: Path) -> None:
    """Accelerate would read that of rank 0 only."""
    dataset = paceline.data.from_items([{"x": 1, "y": 2}] * 8)
    shard = DataIterator(prepared("train", dataset, split=True, uneven="equal"), 0, 2)
    worker: Any = SimpleNamespace(world_size=1, shards={"train": shard})
    session.install(worker)
    try:
        with pytest.raises(ConfigError, match=r"'train'.*split.*other workers"):
            prepare_trainer(own_trainer({"train_dataset": shard.to_torch(label_column="y")}, tmp_path))
    finally:
        session.install(None)
