"""Every framework's backend passes one suite: in short with each run of the tests, in full with the slow ones."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from paceline.testing.backend_contract import BackendContract, ShortBackendContract
from paceline.testing.backend_lesson import Lesson
from paceline.train.base_trainer import BaseTrainer
from tests.contracts import framework_trainings as trainings


class InShort(ShortBackendContract):
    """Start, collectives, and going on from the checkpoint after a rank was killed."""

    mishaps = ShortBackendContract.mishaps[1:]


class TestTorch(InShort):
    sum_over_ranks = staticmethod(trainings.torch_sum)

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.torch import TorchTrainer

        return TorchTrainer(trainings.torch_training, train_loop_config={"lesson": lesson}, **settings)


class TestAccelerate(InShort):
    sum_over_ranks = staticmethod(trainings.accelerate_sum)

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.huggingface import AccelerateTrainer

        return AccelerateTrainer(trainings.accelerate_training, train_loop_config={"lesson": lesson}, **settings)


class TestTransformers(InShort):
    sum_over_ranks = staticmethod(trainings.torch_sum)

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.huggingface import TransformersTrainer

        return TransformersTrainer(trainings.transformers_trainer, trainer_init_config={"lesson": lesson}, **settings)


class TestLightning(InShort):
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


class TestHorovodTorch(InShort):
    sum_over_ranks = staticmethod(trainings.horovod_torch_sum)

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.horovod import HorovodTrainer

        return HorovodTrainer(trainings.horovod_torch_training, train_loop_config={"lesson": lesson}, **settings)


class TestTensorflow(InShort):
    sum_over_ranks = staticmethod(trainings.tensorflow_sum)

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.tensorflow import TensorflowTrainer

        return TensorflowTrainer(trainings.tensorflow_training, train_loop_config={"lesson": lesson}, **settings)


class TestJax(InShort):
    sum_over_ranks = staticmethod(trainings.jax_sum)

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def loaded() -> None:
        """It sets variables when it is imported, which no test shall be blamed for."""
        importlib.import_module("jax")

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.jax import JaxTrainer

        return JaxTrainer(trainings.jax_training, train_loop_config={"lesson": lesson}, **settings)


@pytest.mark.slow
class TestTorchInFull(TestTorch, BackendContract):
    mishaps = BackendContract.mishaps


@pytest.mark.slow
class TestAccelerateInFull(TestAccelerate, BackendContract):
    mishaps = BackendContract.mishaps


@pytest.mark.slow
class TestTransformersInFull(TestTransformers, BackendContract):
    mishaps = BackendContract.mishaps


@pytest.mark.slow
class TestLightningInFull(TestLightning, BackendContract):
    mishaps = BackendContract.mishaps


@pytest.mark.slow
class TestHorovodTorchInFull(TestHorovodTorch, BackendContract):
    mishaps = BackendContract.mishaps


@pytest.mark.slow
class TestTensorflowInFull(TestTensorflow, BackendContract):
    mishaps = BackendContract.mishaps


@pytest.mark.slow
class TestJaxInFull(TestJax, BackendContract):
    mishaps = BackendContract.mishaps


@pytest.mark.slow
class TestHorovodTensorflowInFull(BackendContract):
    """The guide to Horovod has a fit with TensorFlow, which is enough for each run of the tests."""

    sum_over_ranks = staticmethod(trainings.horovod_tensorflow_sum)

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        from paceline.train.horovod import HorovodTrainer

        return HorovodTrainer(trainings.horovod_tensorflow_training, train_loop_config={"lesson": lesson}, **settings)
