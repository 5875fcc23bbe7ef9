from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paceline.air.errors import ConfigError, EngineError
from paceline.engine import choose, inline, protocol
from paceline.engine.inline import InlineEngine


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "ray", raising=False)  # Other tests of this process may be connected to a cluster.
    monkeypatch.setattr(choose, "find_spec", lambda name: None)
    choose.shutdown()
    yield
    choose.shutdown()


class ClusterEngine(InlineEngine):
    """Stands for the engine of a Ray cluster."""

    name = "ray"

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        sys.modules["ray"].connected = True  # type: ignore[attr-defined]  # see with_ray
        self.settings = settings
        self.is_gone = False

    @property
    def lost(self) -> str:
        return "the cluster is gone" if self.is_gone else ""

    def describe(self) -> str:
        return "the Ray cluster at 10.0.0.1:6379"


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Ray is installed, and this program has not called ray.init()."""
    spec = importlib.machinery.ModuleSpec("ray", None, origin="/elsewhere/ray/__init__.py")
    ray = types.SimpleNamespace(connected=False, __spec__=spec)
    ray.is_initialized = lambda: ray.connected
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]  # nothing asks for more of a module
    monkeypatch.setattr(choose, "find_spec", lambda name: spec)
    monkeypatch.setitem(sys.modules, "paceline.engine.ray.engine", types.SimpleNamespace(RayEngine=ClusterEngine))  # type: ignore[arg-type]
    return ray


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
    with pytest.warns(UserWarning, match="include_dashboard, runtime_env") as caught:
        choose.init(runtime_env={}, include_dashboard=False, num_cpus=3)
    assert [warning.filename for warning in caught] == [__file__]
    assert choose.choose_engine().resources()["CPU"] == 3


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379"])
def test_an_address_needs_the_extra(address: str) -> None:
    for arguments, keywords in (((address,), {}), ((), {"address": address})):
        with pytest.raises(ConfigError, match=r"paceline\[ray\].*remove .*address.* from paceline\.init\(\)"):
            choose.init(*arguments, **keywords)
        assert not choose.is_initialized()


def test_ray_address_without_the_extra_is_another_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert choose.choose_engine().name == "local"


def test_the_cluster_of_an_address_is_used_with_the_settings_of_init(with_ray: types.SimpleNamespace) -> None:
    choose.init(address="10.0.0.1:6379", runtime_env={"env_vars": {"A": "1"}}, namespace=None)
    engine = choose.choose_engine()
    assert isinstance(engine, ClusterEngine)
    assert engine.settings == {"address": "10.0.0.1:6379", "runtime_env": {"env_vars": {"A": "1"}}}


def test_settings_of_a_cluster_are_for_the_one_that_the_environment_names(
    with_ray: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_ENGINE", "ray")
    choose.init(runtime_env={"env_vars": {"A": "1"}})  # without a warning
    engine = choose.choose_engine()
    assert isinstance(engine, ClusterEngine)
    assert engine.settings == {"runtime_env": {"env_vars": {"A": "1"}}}


def test_the_first_line_names_what_chose_the_cluster(
    with_ray: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_line(requested: str | None = None) -> str:
        return choose.announcement(choose.choose_engine(requested), requested)

    assert first_line() == ""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert first_line() == "paceline runs on the Ray cluster at 10.0.0.1:6379 (chosen by RAY_ADDRESS)"
    assert first_line("local") == ""
    assert first_line().endswith("(chosen by RAY_ADDRESS)"), "it was the engine that has connected this process"
    choose.shutdown()
    with_ray.connected = True
    assert first_line().endswith("(chosen by ray.init())")
    monkeypatch.setenv("PACELINE_ENGINE", "ray")
    assert first_line().endswith("(chosen by PACELINE_ENGINE)")
    choose.init(engine="ray")
    assert first_line().endswith("(chosen by paceline.init())")
    assert first_line("ray").endswith("(chosen by RunConfig(engine=...))")
    assert first_line("inline") == "paceline runs on the engine 'inline' (chosen by RunConfig(engine=...))"


def test_a_run_on_ray_does_not_choose_for_the_next(with_ray: types.SimpleNamespace) -> None:
    assert choose.choose_engine("ray").name == "ray"
    assert choose.choose_engine().name == "local"


def test_an_attempt_that_failed_does_not_hide_the_programs_own_ray(
    with_ray: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: ClusterEngine, **settings: Any) -> None:
        raise EngineError("no connection")

    with monkeypatch.context() as patch:
        patch.setattr(ClusterEngine, "__init__", refuse)
        with pytest.raises(EngineError):
            choose.choose_engine("ray")
    assert choose.choose_engine().name == "local"
    with_ray.connected = True  # The program calls ray.init().
    assert choose.choose_engine().name == "ray"


def test_the_error_about_a_missing_engine_names_the_line_to_remove() -> None:
    with pytest.raises(ConfigError, match=r"remove the engine and the address from paceline\.init\(\)"):
        choose._check("ray", "paceline.init()")


def test_a_worker_of_ours_never_takes_the_cluster(
    with_ray: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("PACELINE_ENGINE", "ray")
    monkeypatch.setenv(protocol.RUN_ID_VARIABLE, "outer")
    with_ray.connected = True
    assert choose.choose_engine().name == "local"


def test_an_engine_whose_cluster_is_gone_is_replaced(with_ray: types.SimpleNamespace) -> None:
    first = choose.choose_engine("ray")
    assert choose.choose_engine("ray") is first
    assert isinstance(first, ClusterEngine)
    first.is_gone = True
    assert choose.choose_engine("ray") is not first


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
