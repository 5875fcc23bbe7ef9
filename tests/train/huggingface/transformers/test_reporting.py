"""What becomes one report of what a transformers.Trainer logs, evaluates and saves at a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch._dynamo  # noqa: F401  # sets variables when it is imported, which no test shall be blamed for
from transformers import TrainerControl, TrainerState, TrainingArguments

from paceline.air import session
from paceline.air.errors import ConfigError, StopTraining
from paceline.run.session import Session
from paceline.train.huggingface.transformers.callback import ReportCallback, Reporter
from paceline.train.huggingface.transformers.checkpoint import check_that_all_is_kept
from paceline.train.huggingface.transformers.training_arguments import check_rounded_steps, check_strategies


class Rows:
    """Stands in for the session of a worker: keeps what is reported."""

    world_size = 1

    def __init__(self) -> None:
        self.reported: list[tuple[dict[str, Any], bool]] = []
        self.stops = False
        self.asks = False
        self.snapshots = 0
        """How many have begun."""

    def should_checkpoint(self) -> bool:
        return self.asks

    def snapshot_begins(self) -> None:
        self.snapshots += 1

    def snapshot_ends(self) -> None: ...

    def report(
        self, metrics: dict[str, Any], checkpoint: Any = None, reduce: Any = None, validation: Any = None
    ) -> None:
        self.reported.append((dict(metrics), checkpoint is not None))
        if self.stops:
            raise StopTraining("stop")


@pytest.fixture
def rows() -> Iterator[Rows]:
    kept: Any = Rows()
    session.install(kept)
    yield kept
    session.install(None)


def arguments(folder: Path) -> Any:
    return SimpleNamespace(
        output_dir=str(folder),
        world_size=1,
        process_index=0,
        save_only_model=False,
        logging_strategy="steps",
        save_strategy="steps",
    )


def state(step: int) -> TrainerState:
    return TrainerState(global_step=step, epoch=step / 10, max_steps=10, num_train_epochs=1)


def test_several_evaluation_sets_are_one_row(rows: Rows, tmp_path: Path) -> None:
    reporter, control, args = (
        Reporter(None, evaluation_sets=2),
        TrainerControl(should_evaluate=True),
        arguments(tmp_path),
    )
    reporter.on_log(args, state(1), control, logs={"loss": 2.0})
    for name in ("first", "second"):
        reporter.on_log(args, state(1), control, logs={f"eval_{name}_loss": 1.0})
        control.should_evaluate = False  # as the trainer does before it tells its callbacks
        reporter.on_evaluate(args, state(1), control)
    assert rows.reported == [({"loss": 2.0, "eval_first_loss": 1.0, "eval_second_loss": 1.0, "step": 1}, False)]


@pytest.mark.parametrize("callback", [Reporter(None), ReportCallback()], ids=lambda each: type(each).__name__)
def test_the_run_may_ask_for_a_checkpoint_of_any_step(rows: Rows, tmp_path: Path, callback: Any) -> None:
    control = TrainerControl()
    callback.on_step_end(arguments(tmp_path), state(3), control)
    assert not control.should_save
    rows.asks = True
    callback.on_step_end(arguments(tmp_path), state(4), control)
    assert control.should_save


@pytest.mark.parametrize("callback", [Reporter(None), ReportCallback()], ids=lambda each: type(each).__name__)
def test_an_evaluation_before_the_save_is_not_its_cost(rows: Rows, tmp_path: Path, callback: Any) -> None:
    control = TrainerControl()
    callback.on_evaluate(arguments(tmp_path), state(3), control)
    assert rows.snapshots == 0, "nothing is saved"
    control.should_save = True
    callback.on_evaluate(arguments(tmp_path), state(4), control)
    assert rows.snapshots == 1


def test_an_evaluation_of_the_users_own_mixes_no_steps(rows: Rows, tmp_path: Path) -> None:
    """A callback that calls evaluate() for one of two sets, at a step without an evaluation."""
    reporter, args = Reporter(None, evaluation_sets=2), arguments(tmp_path)
    reporter.on_evaluate(args, state(1), TrainerControl())
    for step in (2, 3):
        control = TrainerControl(should_evaluate=True)
        reporter.on_log(args, state(step), control, logs={"loss": float(step)})
        for _ in range(2):
            control.should_evaluate = False
            reporter.on_evaluate(args, state(step), control)
    assert [metrics for metrics, _ in rows.reported] == [{"loss": 2.0, "step": 2}, {"loss": 3.0, "step": 3}]


def test_fewer_rows_than_expected_end_with_a_checkpoint_too(rows: Rows, tmp_path: Path) -> None:
    reporter, control, args = Reporter(None), TrainerControl(), arguments(tmp_path)
    reporter.on_train_begin(args, state(0), control)
    reporter.on_epoch_end(args, state(7), control)
    assert control.should_training_stop
    assert control.should_save
    reporter.on_log(args, state(7), control, logs={"loss": 2.0})
    control.should_save = False
    reporter.on_save(args, state(7), control)
    reporter.on_log(args, state(7), control, logs={"train_runtime": 1.0})
    reporter.on_train_end(args, state(7), control)
    assert rows.reported == [({"loss": 2.0, "step": 7, "train_runtime": 1.0}, True)]


def test_what_was_resumed_from_is_let_go_after_the_first_step(rows: Rows, tmp_path: Path) -> None:
    reporter, let_go = Reporter(None), []
    reporter.after_first_step = lambda: let_go.append(True)
    for step in (1, 2):
        reporter.on_step_end(arguments(tmp_path), state(step), TrainerControl())
    assert let_go == [True]


def test_shares_of_the_training_are_checked_as_the_steps_that_they_become(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, logging_steps=0.1, save_steps=0.2)
    check_strategies(args)
    rounded = TrainerState(max_steps=15)
    rounded.compute_steps(args, 15)
    with pytest.raises(ConfigError, match=r"3.*2.*15 steps.*save_steps=4.*logging_steps=2"):
        check_rounded_steps(args, rounded)
    rounded.compute_steps(args, 20)
    check_rounded_steps(args, rounded)


@pytest.mark.parametrize(
    ("plugins", "kept", "refused"),
    [
        ({"fsdp_plugin": SimpleNamespace(state_dict_type="StateDictType.SHARDED_STATE_DICT")}, False, "FSDP"),
        ({"deepspeed_plugin": object()}, False, "DeepSpeed"),
        ({"deepspeed_plugin": object()}, True, None),
        ({"fsdp_plugin": SimpleNamespace(state_dict_type="StateDictType.FULL_STATE_DICT")}, False, None),
        ({}, False, None),
    ],
)
def test_sharded_checkpoints_need_the_files_of_all_ranks(
    plugins: dict[str, Any], kept: bool, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker: Any = object.__new__(Session)
    worker.world_size = 2
    monkeypatch.setattr(Session, "keeps_all_ranks", kept)
    monkeypatch.setattr("accelerate.state.AcceleratorState", lambda: SimpleNamespace(**plugins))
    session.install(worker)
    try:
        with pytest.raises(ConfigError, match=f"{refused}.*keep_all_ranks=True") if refused else nullcontext():
            check_that_all_is_kept()
    finally:
        session.install(None)


def test_a_checkpoint_goes_with_its_step_and_leaves_no_copy(rows: Rows, tmp_path: Path) -> None:
    reporter, control, args = Reporter(None), TrainerControl(should_save=True), arguments(tmp_path)
    reporter.on_log(args, state(1), control, logs={"loss": 2.0})
    assert rows.reported == []
    control.should_save = False
    reporter.on_save(args, state(1), control)
    assert rows.reported == [({"loss": 2.0, "step": 1}, True)]
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_is_ended_early_has_one_last_row_with_a_checkpoint(rows: Rows, tmp_path: Path) -> None:
    """As by EarlyStoppingCallback, at a step that would not have been saved."""
    reporter, control, args = Reporter(None), TrainerControl(should_evaluate=True), arguments(tmp_path)
    reporter.on_train_begin(args, state(0), control)
    reporter.on_log(args, state(4), control, logs={"loss": 2.0})
    control.should_evaluate, control.should_training_stop = False, True
    reporter.on_evaluate(args, state(4), control)
    reporter.on_epoch_end(args, state(4), control)
    assert control.should_save
    control.should_save = False
    reporter.on_save(args, state(4), control)
    reporter.on_log(args, state(4), control, logs={"train_runtime": 1.0})
    reporter.on_train_end(args, state(4), control)
    assert rows.reported == [({"loss": 2.0, "step": 4, "train_runtime": 1.0}, True)]


def test_a_stop_ends_the_training_by_its_own_way(rows: Rows, tmp_path: Path) -> None:
    reporter, control, args = Reporter(None), TrainerControl(), arguments(tmp_path)
    rows.stops = True
    reporter.on_train_begin(args, state(0), control)
    reporter.on_log(args, state(3), control, logs={"loss": 2.0})
    assert control.should_training_stop
    assert isinstance(reporter.stopped, StopTraining)
    reporter.on_log(args, state(3), control, logs={"train_runtime": 1.0})
    reporter.on_train_end(args, state(3), control)
    assert len(rows.reported) == 1
