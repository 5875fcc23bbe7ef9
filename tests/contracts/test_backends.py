"""Every framework's backend passes one suite."""

from __future__ import annotations

from typing import Any

from paceline.testing.backend_contract import BackendContract
from paceline.testing.backend_lesson import Lesson
from paceline.train.base_trainer import BaseTrainer
from tests.contracts import framework_trainings


class TestTorch(BackendContract):
    sum_over_ranks = staticmethod(framework_trainings.torch_sum)

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.torch import TorchTrainer

        return TorchTrainer(framework_trainings.torch_training, train_loop_config={"lesson": lesson}, **settings)
