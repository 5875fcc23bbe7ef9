"""A tree trainer without a library: its model is the number of rounds, so that the base can be tested by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from paceline import data
from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import StopTraining
from paceline.run.backend import BackendConfig
from paceline.train.rounds import Rounds
from paceline.train.trees.task import TreeTask, read_shard
from paceline.train.trees.trainer import TreeTrainer


@dataclass(frozen=True)
class CountingLoop:
    """Adds one tree a round. params: stop_early_at, and the round at which rank 1 dies in the first attempt."""

    task: TreeTask

    def __call__(self) -> None:
        params = self.task.params
        start = session.get_checkpoint()
        done = int(start.to_dict()["rounds"]) if start is not None else 0
        ids = read_shard("train").column("id").to_pylist()
        rounds = Rounds(
            self.task.checkpoint_frequency,
            self.task.checkpoint_at_end,
            lambda: Checkpoint.from_dict({"rounds": done, "ids": ids}),
        )
        if "warns" in params:
            rounds.warn(params["warns"])
        try:
            while done < params.get("stop_early_at", self.task.num_boost_round):
                done += 1
                if done == params.get("dies_at") and session.get_world_rank() == 1 and _first_time(params["once"]):
                    os.kill(os.getpid(), signal.SIGKILL)
                error = float(session.get_world_rank())
                rounds.report(done, {"round": done, "train-error": error}, {"train-error": ("mean", len(ids))})
        except StopTraining:
            rounds.end()
            raise
        rounds.end()


def _first_time(mark: str) -> bool:
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class CountingTrainer(TreeTrainer):
    """Takes what a tree trainer takes."""

    _library: ClassVar[str] = "Counting"
    _train_keywords: ClassVar[tuple[str, ...]] = ("callbacks", "verbose_eval")
    _refused_keywords: ClassVar[dict[str, str]] = {"evals": "evaluation sets are given as datasets."}
    _matrix_keywords: ClassVar[tuple[str, ...]] = ("weight", "qid", "missing")
    _column_keywords: ClassVar[tuple[str, ...]] = ("weight", "qid")

    def __init__(
        self,
        train_loop_per_worker: Any = None,
        *,
        train_loop_config: Any = None,
        params: Any = None,
        label_column: Any = None,
        dmatrix_params: Any = None,
        num_boost_round: Any = None,
        scaling_config: Any = None,
        dataset_config: Any = None,
        run_config: Any = None,
        datasets: Any = None,
        preprocessor: Any = None,
        resume_from_checkpoint: Any = None,
        metadata: Any = None,
        **train_kwargs: Any,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            params=params,
            label_column=label_column,
            dmatrix_params=dmatrix_params,
            num_boost_round=num_boost_round,
            train_kwargs=train_kwargs,
            backend_config=BackendConfig(),
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            run_config=run_config,
            datasets=datasets,
            preprocessor=preprocessor,
            resume_from_checkpoint=resume_from_checkpoint,
            metadata=metadata,
        )

    def _loop(self, task: TreeTask) -> Callable[[], None]:
        return CountingLoop(task)

    def _approximate_metrics(self) -> list[str]:
        return [] if (self.params or {}).get("in_parts", True) else ["count"]


def rows(count: int = 7) -> data.Dataset:
    return data.from_items([{"id": number, "label": number % 2} for number in range(count)])


def counting_trainer(
    params: dict[str, Any] | None = None,
    *,
    workers: int = 2,
    inline: bool = False,
    rounds: int = 6,
    checkpoints: dict[str, Any] | None = None,
    resume: Any = None,
    **run_config: Any,
) -> CountingTrainer:
    """Quiet, on 7 rows, in this process with `inline`; what is not named here belongs to RunConfig."""
    if inline:
        workers, run_config = 1, {"engine": "inline", **run_config}
    return CountingTrainer(
        params=params or {},
        label_column="label",
        num_boost_round=rounds,
        datasets={"train": rows()},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            **{"verbose": 0, "checkpoint_config": CheckpointConfig(**(checkpoints or {})), **run_config}
        ),
        resume_from_checkpoint=resume,
    )
