from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paceline.air.errors import ConfigError, EngineError
from paceline.engine import choose, inline
from paceline.engine.inline import InlineEngine


@pytest.fixture(autouse=True)
def nothing_declared() -> Iterator[None]:
    choose.shutdown()
    yield
    choose.shutdown()


def test_the_default_is_local_and_shared() -> None:
    engine = choose.choose_engine()
    assert engine.name == "local"
    assert choose.choose_engine("local") is engine


def test_what_is_nearer_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_ENGINE", "inline")
    assert choose.choose_engine().name == "inline"
    choose.init(engine="local")
    assert choose.choose_engine().name == "local"
    assert choose.choose_engine("inline").name == "inline"
    own = InlineEngine()
    assert choose.choose_engine(own) is own


def test_init_declares_a_pool() -> None:
    assert not choose.is_initialized()
    choose.init(num_cpus=7, num_gpus=2)
    assert choose.is_initialized()
    assert choose.choose_engine().resources() == {"CPU": 7, "GPU": 2}
    with pytest.raises(EngineError, match=r"paceline\.shutdown\(\)"):
        choose.init()
    choose.shutdown()
    assert not choose.is_initialized()
    assert choose.choose_engine().resources()["CPU"] >= 1


@pytest.mark.parametrize("name", ["ray", "spark", ""])
def test_an_engine_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="local"):
        choose.choose_engine(name)
    with pytest.raises(ConfigError, match="local"):
        choose.init(engine=name)
    assert not choose.is_initialized()


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_ENGINE", "lokal")
    with pytest.raises(ConfigError, match="PACELINE_ENGINE"):
        choose.choose_engine()


@pytest.mark.parametrize("settings", [{"num_cpus": -1}, {"num_gpus": "two"}, {"num_cpus": True}])
def test_impossible_pools_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        choose.init(**settings)  # type: ignore[arg-type]


def test_settings_of_a_cluster_that_are_none_are_not_mentioned() -> None:
    choose.init(address=None, runtime_env=None)
    choose.shutdown()


def test_settings_of_a_cluster_are_ignored_with_one_warning() -> None:
    with pytest.warns(UserWarning, match="address, include_dashboard, runtime_env") as caught:
        choose.init(address="auto", runtime_env={}, include_dashboard=False, num_cpus=3)
    assert [warning.filename for warning in caught] == [__file__]
    assert choose.choose_engine().resources()["CPU"] == 3


@pytest.mark.parametrize("address", ["auto", "ray://head:10001", "10.0.0.1:6379"])
def test_the_address_of_a_cluster_is_ignored_in_the_first_place_too(address: str) -> None:
    with pytest.warns(UserWarning, match="address"):
        choose.init(address)
    assert choose.is_initialized()


def test_init_is_a_context_manager() -> None:
    with choose.init(num_cpus=1) as context:
        assert choose.is_initialized()
        assert context.dashboard_url == ""
    assert not choose.is_initialized()
    choose.init().disconnect()
    assert not choose.is_initialized()


def test_a_second_init_may_be_ignored() -> None:
    choose.init(num_cpus=3, ignore_reinit_error=True)
    choose.init(num_cpus=5, ignore_reinit_error=True)
    assert choose.choose_engine().resources()["CPU"] == 3


def test_a_misspelt_keyword_of_init_is_refused() -> None:
    with pytest.raises(TypeError, match="num_cpu'"):
        choose.init(num_cpu=2)
    assert not choose.is_initialized()


def test_threads_that_choose_at_once_share_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = threading.Barrier(4)

    class SlowEngine(InlineEngine):
        def __init__(self, *pool: Any) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                everyone.wait(0.2)  # without a lock all four threads meet here
            super().__init__(*pool)

    monkeypatch.setattr(inline, "InlineEngine", SlowEngine)
    with ThreadPoolExecutor(4) as pool:
        engines = [future.result() for future in [pool.submit(choose.choose_engine, "inline") for _ in range(4)]]
    assert len({id(engine) for engine in engines}) == 1
    assert isinstance(engines[0], SlowEngine)
