"""The backends that are built on PyTorch pass their contract on two hosts, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.testing.backend_contract import BackendExperiment
from paceline.testing.backend_lesson import Lesson
from paceline.train.base_trainer import BaseTrainer
from tests.contracts import test_backends as on_one_machine
from tests.hosts.engine import HostsEngine
from tools.hosts import Hosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class OnHosts:
    """The hosts see the marks, by which ranks tell what they have done, and nothing else of the test's directory."""

    @pytest.fixture
    def experiment(self, own_hosts: Callable[..., Hosts], tmp_path: Path) -> Iterator[BackendExperiment]:
        marks = tmp_path / "marks"
        marks.mkdir()
        self.engine = HostsEngine(own_hosts(2, marks))
        yield BackendExperiment(self, tmp_path)
        self.engine.close()

    def make_trainer(self, lesson: Lesson, **settings: Any) -> BaseTrainer:
        settings["run_config"] = dataclasses.replace(settings["run_config"], engine=self.engine)
        return super().make_trainer(lesson, **settings)


class TestTorch(OnHosts, on_one_machine.TestTorch): ...


class TestAccelerate(OnHosts, on_one_machine.TestAccelerate): ...


class TestTransformers(OnHosts, on_one_machine.TestTransformers): ...


class TestLightning(OnHosts, on_one_machine.TestLightning): ...
