"""Every framework's backend passes one suite."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from paceline.testing.backend_contract import BackendContract, ShortBackendContract
from paceline.testing.backend_lesson import Lesson
from paceline.train.base_trainer import BaseTrainer
from tests.contracts import framework_trainings as trainings


class TestTorch(BackendContract):
    sum_over_ranks = staticmethod(trainings.torch_sum)

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.torch import TorchTrainer

        return TorchTrainer(trainings.torch_training, train_loop_config={"lesson": lesson}, **settings)


class TestAccelerate(BackendContract):
    sum_over_ranks = staticmethod(trainings.accelerate_sum)

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.huggingface import AccelerateTrainer

        return AccelerateTrainer(trainings.accelerate_training, train_loop_config={"lesson": lesson}, **settings)


class TestTransformers(BackendContract):
    sum_over_ranks = staticmethod(trainings.torch_sum)

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.huggingface import TransformersTrainer

        return TransformersTrainer(trainings.transformers_trainer, trainer_init_config={"lesson": lesson}, **settings)


class TestLightning(BackendContract):
    sum_over_ranks = staticmethod(trainings.torch_sum)

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def loaded() -> None:
        """It sets variables when it is imported, which no test shall be blamed for."""
        importlib.import_module("tests.contracts.lightning_training")

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.lightning import LightningConfigBuilder, LightningTrainer
        from tests.contracts.lightning_training import Line

        config = LightningConfigBuilder().module(Line, lesson=lesson).trainer(max_epochs=lesson.epochs).checkpointing()
        return LightningTrainer(config.build(), **settings)


class TestHorovodTorch(BackendContract):
    sum_over_ranks = staticmethod(trainings.horovod_torch_sum)

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.horovod import HorovodTrainer

        return HorovodTrainer(trainings.horovod_torch_training, train_loop_config={"lesson": lesson}, **settings)


class TestTensorflowInShort(ShortBackendContract):
    sum_over_ranks = staticmethod(trainings.tensorflow_sum)

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.tensorflow import TensorflowTrainer

        return TensorflowTrainer(trainings.tensorflow_training, train_loop_config={"lesson": lesson}, **settings)


@pytest.mark.faults
class TestTensorflow(TestTensorflowInShort, BackendContract):
    """The rest of it: two new interpreters that import TensorFlow for every fit."""

    test_what_fails_is_named_and_training_goes_on_from_the_checkpoint = None


class TestHorovodTensorflowInShort(ShortBackendContract):
    sum_over_ranks = staticmethod(trainings.horovod_tensorflow_sum)
    mishaps = ShortBackendContract.mishaps[1:]

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.horovod import HorovodTrainer

        return HorovodTrainer(trainings.horovod_tensorflow_training, train_loop_config={"lesson": lesson}, **settings)


@pytest.mark.faults
class TestHorovodTensorflow(TestHorovodTensorflowInShort, BackendContract):
    """The rest of it, as with TensorFlow."""

    mishaps = ShortBackendContract.mishaps
