"""A backend of the user's own: when it is called, and what becomes of its errors."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy
import pytest

from paceline import train
from paceline.air import session
from paceline.air.errors import EngineError, RemoteError, TrainingFailedError
from paceline.testing.backend_contract import check_declared_types
from paceline.train import Backend, BackendConfig
from tests.train.quick import quick_trainer


def remember(key: str, value: str) -> None:
    os.environ[key] = value


def recall(key: str) -> str | None:
    return os.environ.get(key)


class NotingBackend(Backend):
    calls: list[str] = []

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        self.calls.append("start")
        worker_group.execute(remember, "NOTE", "of the backend")

    def on_training_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        self.calls.append("training start")
        assert worker_group.execute(recall, "NOTE") == ["of the backend"] * 2

    def on_shutdown(self, worker_group: Any, backend_config: BackendConfig) -> None:
        self.calls.append("shutdown")
        assert worker_group.execute_single(1, recall, "NOTE") == "of the backend"

    def on_end(self) -> None:
        self.calls.append("end")


class NotingConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return NotingBackend


class BrokenBackend(NotingBackend):
    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        raise EngineError("no free port")


class BrokenConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return BrokenBackend


def test_a_backend_of_the_users_own() -> None:
    NotingBackend.calls.clear()
    result = quick_trainer(lambda: session.report({"note": recall("NOTE")}), backend=NotingConfig()).fit()
    assert NotingBackend.calls == ["start", "training start", "shutdown", "end"]
    assert [metrics["note"] for metrics in result.rank_metrics.values()] == ["of the backend"] * 2


def test_a_backend_is_told_of_the_end_of_every_attempt() -> None:
    NotingBackend.calls.clear()
    twice = train.FailureConfig(max_failures=1)
    trainer = quick_trainer(lambda: {}["nothing"], backend=NotingConfig(), failure_config=twice)
    with pytest.raises(TrainingFailedError, match="KeyError"):
        trainer.fit()
    assert NotingBackend.calls == ["start", "training start", "end"] * 2


def test_a_backend_that_cannot_start_fails_the_run_once() -> None:
    NotingBackend.calls.clear()
    trainer = quick_trainer(lambda: None, backend=BrokenConfig(), failure_config=train.FailureConfig(max_failures=3))
    with pytest.raises(TrainingFailedError, match="no free port") as caught:
        trainer.fit()
    assert len(caught.value.failures) == 1
    assert NotingBackend.calls == ["end"]


class RankBackend(Backend):
    seen: ClassVar[dict[str, Any]] = {}

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        self.seen["ranks"] = worker_group.execute(ask_rank)
        self.seen["each"] = worker_group.execute_each(divmod, [(7, 2), (9, 4)][: len(worker_group)])
        with pytest.raises(ValueError, match=rf"arguments for {len(worker_group)} ranks, not for 3"):
            worker_group.execute_each(divmod, [(7, 2), (9, 4), (1, 1)])
        with pytest.raises(RemoteError, match=r"give_array\(\).*return plain data"):
            worker_group.execute(give_array)


class RankConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return RankBackend


def ask_rank() -> list[int]:
    context = train.get_context()
    return [context.get_world_rank(), context.get_world_size(), train.world_rank(), session.get_world_size()]


def give_array() -> Any:
    return numpy.zeros(3)


@pytest.mark.parametrize("workers", [1, 2])
def test_functions_of_a_backend_know_their_rank(workers: int) -> None:
    one = {"inline": True} if workers == 1 else {}
    quick_trainer(lambda: None, backend=RankConfig(), **one).fit()  # type: ignore[arg-type]
    assert RankBackend.seen["ranks"] == [[rank, workers, rank, workers] for rank in range(workers)]
    assert RankBackend.seen["each"] == [[3, 1], [2, 1]][:workers]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("preload", "json", "must be a tuple"),
        ("preload", ("jsonn",), "jsonn, which cannot be imported"),
        ("collateral_phrases", ("",), "must hold texts"),
        ("fresh", 1, "True or False"),
        ("environment", lambda self, config: {"THREADS": 2}, "THREADS must be a text"),
    ],
)
def test_the_contract_finds_mistakes_in_what_a_backend_declares(
    name: str, value: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_declared_types(NotingConfig())
    monkeypatch.setattr(NotingBackend, name, value)
    with pytest.raises(AssertionError, match=told):
        check_declared_types(NotingConfig())


def test_a_module_to_preload_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NotingBackend, "preload", ("json", "jsonn.tool"))
    with pytest.warns(UserWarning, match=r"NotingBackend\.preload names jsonn\.tool, which cannot be imported"):
        quick_trainer(lambda: None, backend=NotingConfig())
