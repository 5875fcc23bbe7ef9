"""The backends of all frameworks pass their contract on two hosts, too, and train what they train on one machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.base import Engine
from paceline.testing.backend_contract import BackendExperiment
from paceline.testing.backend_lesson import Lesson
from paceline.train.base_trainer import BaseTrainer
from tests.contracts import test_backends as on_one_machine
from tests.engine.remote.engine import AgentsEngine
from tools.hosts import Hosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EPOCHS = 4


class OnHosts:
    """The hosts see the marks, by which ranks tell what they have done, and nothing else of the test's directory."""

    engine: Engine | str
    by_name = False
    """Whether hosts know each other by name."""

    @pytest.fixture
    def experiment(self, own_hosts: Callable[..., Hosts], tmp_path: Path) -> Iterator[BackendExperiment]:
        marks = tmp_path / "marks"
        marks.mkdir()
        self.engine = engine = AgentsEngine(hosts=own_hosts(2, marks, names=self.by_name))
        yield BackendExperiment(self, tmp_path)
        engine.close()

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        failure_config = dataclasses.replace(settings["run_config"].failure_config, start_timeout_s=240)
        settings["run_config"] = dataclasses.replace(
            settings["run_config"], engine=self.engine, failure_config=failure_config
        )
        return super().make_trainer(lesson, **settings)

    def test_the_model_is_that_of_one_machine(self, experiment: BackendExperiment, tmp_path: Path) -> None:
        experiment.succeed(epochs=EPOCHS)
        experiment.check_ranks_agree(2)
        self.engine = "local"
        alone = BackendExperiment(self, tmp_path / "alone")
        alone.succeed(epochs=EPOCHS)
        alone.check_ranks_agree(2)
        weights, expected = (each.marks.read("end")[0]["weights"] for each in (experiment, alone))
        assert weights == pytest.approx(expected, rel=1e-5)


class TestTorch(OnHosts, on_one_machine.TestTorch): ...


class TestAccelerate(OnHosts, on_one_machine.TestAccelerate): ...


class TestTransformers(OnHosts, on_one_machine.TestTransformers): ...


class TestLightning(OnHosts, on_one_machine.TestLightning): ...


class TestHorovodTorch(OnHosts, on_one_machine.TestHorovodTorch):
    by_name = True


class HorovodTensorflowInShort(on_one_machine.InShort):
    sum_over_ranks = staticmethod(on_one_machine.TestHorovodTensorflowInFull.sum_over_ranks)
    make_trainer = on_one_machine.TestHorovodTensorflowInFull.make_trainer


class TestHorovodTensorflow(OnHosts, HorovodTensorflowInShort):
    by_name = True


class TestTensorflow(OnHosts, on_one_machine.TestTensorflow): ...
