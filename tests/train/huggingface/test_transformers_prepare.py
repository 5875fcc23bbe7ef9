"""A transformers.Trainer of the user's own inside of a train function: prepare_trainer and ReportCallback."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # sets variables when it is imported, which no test shall be blamed for
import transformers
from transformers import GPT2LMHeadModel, TrainerCallback, TrainingArguments

import paceline.data
from paceline import train
from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.config import DataConfig, FailureConfig
from paceline.air.result import Result
from paceline.train.huggingface.transformers import ReportCallback, TransformersCheckpoint, prepare_trainer
from paceline.train.huggingface.transformers.config import TransformersConfig
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
    arguments = TrainingArguments(
        "out",
        max_steps=10,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=3,
        eval_strategy="steps",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        language_model(dropout=0.1),
        arguments,
        train_dataset=train.get_dataset_shard("train").iter_torch_batches(batch_size=BATCH),
        eval_dataset=train.get_dataset_shard("evaluation").iter_torch_batches(batch_size=BATCH),
        compute_metrics=token_accuracy,
        callbacks=[ReportCallback(), *([IsKilledOnce()] if config["kill"] else [])],
    )
    trainer = prepare_trainer(trainer)
    checkpoint = train.get_checkpoint()
    if checkpoint is None:
        trainer.train()
        return
    with checkpoint.as_directory() as folder:
        trainer.train(resume_from_checkpoint=os.path.join(folder, ReportCallback.CHECKPOINT_NAME))


def fit(folder: Path, kill: bool) -> Result:
    return TorchTrainer(
        train_func,
        train_loop_config={"kill": kill},
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
