"""Which engine a run uses, and the process-wide engines themselves.

An explicit choice wins over `init`, that over PACELINE_ENGINE. Then a Ray that this program is connected to, or that
RAY_ADDRESS names, is used; otherwise workers are processes on this machine.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from paceline.air.checks import check_engine, warn_at_users_line
from paceline.air.errors import ConfigError, EngineError
from paceline.air.plugins import checked_made, made_by_name
from paceline.air.ray_alias import INSTEAD, alias_in_force
from paceline.engine import protocol

if TYPE_CHECKING:
    from paceline.engine.base import Engine

ENGINE_VARIABLE = "PACELINE_ENGINE"
RAY_ADDRESS_VARIABLE = "RAY_ADDRESS"
_CLUSTER_SETTINGS = frozenset(
    [
        "address",
        "configure_logging",
        "dashboard_host",
        "dashboard_port",
        "include_dashboard",
        "job_config",
        "labels",
        "local_mode",
        "log_to_driver",
        "logging_config",
        "logging_format",
        "logging_level",
        "namespace",
        "object_store_memory",
        "resources",
        "runtime_env",
        "storage",
    ]
)
"""Keywords of ray.init(): ported scripts have them, also where no cluster is used."""


@dataclass(frozen=True)
class _Declared:
    """What `init` was told."""

    engine: str | Engine | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    cluster: Mapping[str, Any] = field(default_factory=dict)
    """Settings that ray.init() takes."""


_LINES_TO_REMOVE = {
    "init(engine=...)": "the engine and the address from paceline.init()",
    "paceline.init()": "the engine and the address from paceline.init()",
    "RunConfig(engine=...)": "engine='ray' from RunConfig",
    ENGINE_VARIABLE: f"{ENGINE_VARIABLE}=ray from the environment",
}


class InitContext:
    """What `init` returns. As a context manager it ends with `shutdown`."""

    dashboard_url = ""
    """Empty: only the first run connects to a cluster, and whether that has a dashboard is not known before."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        shutdown()

    def disconnect(self) -> None:
        """The same as `shutdown`."""
        shutdown()


_declared: _Declared | None = None
_warned_of_address = False
_connected_ray = False
"""Whether it was an engine of ours that has connected this process to Ray, not the program itself."""
_engines: dict[str, Engine] = {}
_inherited: list[dict[str, Engine]] = []
_lock = threading.RLock()
"""Two threads that start a run at once share one engine."""


def init(
    engine: str | Engine | None = None,
    *,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    ignore_reinit_error: bool = False,
    **cluster_settings: Any,
) -> InitContext:
    """Declare the default engine and the pool of CPUs and GPUs. Optional: a run works without.

    An `address` chooses the engine "ray", also if it is given in the place of `engine`: "auto" for the cluster that
    this machine is a node of, "host:port" for the one with this head, "local" for a Ray on this machine that ends with
    `shutdown`. The first run connects to it. Other settings that ray.init() takes, such as `runtime_env`, are passed
    on to it; other engines ignore them, with a warning.

    With `ignore_reinit_error` a second call changes nothing. ``with paceline.init(): ...`` ends with `shutdown`.
    """
    global _declared
    _check_cluster_settings(cluster_settings)
    cluster_settings = {name: value for name, value in cluster_settings.items() if value is not None}
    if isinstance(engine, str) and _is_address(engine):  # ray.init("auto")
        cluster_settings["address"], engine = engine, None
    if "address" in cluster_settings and engine is None and not alias_in_force():
        engine = "ray"
    if _choice(engine, _Declared())[0] != "ray":
        _warn_of_cluster_settings(cluster_settings)
    if _declared is not None:
        if ignore_reinit_error:
            return InitContext()
        raise EngineError("paceline.init() was already called; call paceline.shutdown() first")
    for name, value in (("num_cpus", num_cpus), ("num_gpus", num_gpus)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0):
            raise ConfigError(f"{name} must be a number that is not negative, not {value!r}")
    _check(engine, "init(engine=...)")
    shutdown()  # Engines that were made before take the new numbers.
    _declared = _Declared(engine, num_cpus, num_gpus, cluster_settings)
    return InitContext()


def _check_cluster_settings(settings: Iterable[str]) -> None:
    """A ported script keeps working; a misspelled name is an error as everywhere."""
    for name in settings:
        if name not in _CLUSTER_SETTINGS and not name.startswith("_"):
            raise TypeError(
                f"paceline.init() got an unexpected keyword argument {name!r}; it takes engine, num_cpus, num_gpus, "
                "ignore_reinit_error, and settings of ray.init() such as address and runtime_env."
            )


def _is_address(text: str) -> bool:
    return text == "auto" or ":" in text


def _warn_of_cluster_settings(settings: Iterable[str] = ()) -> None:
    """RAY_ADDRESS is named once, and only under the alias: elsewhere it is another program's."""
    global _warned_of_address
    ignored = sorted(settings)
    if not _warned_of_address and os.environ.get(RAY_ADDRESS_VARIABLE) and alias_in_force():
        _warned_of_address = True
        ignored.append(RAY_ADDRESS_VARIABLE)
    if ignored:
        why = "the alias paceline.ray uses no cluster" if alias_in_force() else "the engine is not 'ray'"
        warn_at_users_line(
            f"paceline ignores {', '.join(ignored)}: {why}, workers are processes on this machine with this program's "
            "environment."
        )


def is_initialized() -> bool:
    """True between `init` and `shutdown`."""
    return _declared is not None


def shutdown() -> None:
    """End every engine of this process and forget what `init` declared."""
    global _declared, _connected_ray
    with _lock:
        _declared = None
        _connected_ray = False
        engines = list(_engines.values())
        _engines.clear()
    for engine in engines:
        engine.close()


def choose_engine(requested: str | Engine | None = None) -> Engine:
    """The engine for a run; engines chosen by name are shared by the whole process."""
    _refuse_while_importing_main()
    _warn_of_cluster_settings()
    declared = _declared or _Declared()
    choice, source = _choice(requested, declared)
    _check(choice, source)
    if not isinstance(choice, str):
        return choice
    with _lock:
        if choice in _engines and _engines[choice].lost:
            _engines.pop(choice).close()
        if choice not in _engines:
            _engines[choice] = _make(choice, declared)
        return _engines[choice]


def announcement(engine: Engine, requested: str | Engine | None) -> str:
    """The first line that a run shows, if its workers are not simply processes on this machine: where they are, and
    who chose them. `requested` is what `choose_engine` was given for this engine."""
    _, source = _choice(requested, _declared or _Declared())
    if engine.name == "local" or not source:
        return ""
    return f"paceline runs on {engine.describe()} (chosen by {source})"


def _choice(requested: str | Engine | None, declared: _Declared) -> tuple[str | Engine, str]:
    """The engine or its name, and who chose it."""
    if requested is not None:
        return requested, "RunConfig(engine=...)"
    if declared.engine is not None:
        return declared.engine, "paceline.init()"
    if protocol.RUN_ID_VARIABLE in os.environ:  # A worker, or something below one: it inherits the driver's variables.
        return "local", ""
    if named := os.environ.get(ENGINE_VARIABLE):
        return named, ENGINE_VARIABLE
    if not alias_in_force():
        if _ray_is_connected() and not _connected_ray:
            return "ray", "ray.init()"
        if os.environ.get(RAY_ADDRESS_VARIABLE) and find_spec("ray") is not None:
            return "ray", RAY_ADDRESS_VARIABLE
    return "local", ""


def _make(name: str, declared: _Declared) -> Engine:
    if name == "inline":
        from paceline.engine.inline import InlineEngine

        return InlineEngine(declared.num_cpus, declared.num_gpus)
    if name == "local":
        from paceline.engine.local.engine import LocalEngine

        return LocalEngine(declared.num_cpus, declared.num_gpus)
    if name == "ray":
        return _make_ray(declared)
    from paceline.engine.base import Engine

    kind: Any = Engine  # only compared with: mypy rejects abstract classes as values
    engine: Engine = checked_made(made_by_name("engines", name), kind, "engines", name)
    return engine


def _ray_is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _make_ray(declared: _Declared) -> Engine:
    global _connected_ray
    _connected_ray = not _ray_is_connected()
    from paceline.engine.ray.engine import RayEngine

    pool = {"num_cpus": declared.num_cpus, "num_gpus": declared.num_gpus}
    settings: dict[str, Any] = {**declared.cluster, **pool}
    try:
        return RayEngine(**{name: value for name, value in settings.items() if value is not None})
    except BaseException:
        _connected_ray = _connected_ray and _ray_is_connected()
        raise


def _check(engine: str | Engine | None, source: str) -> None:
    if engine == "ray" and alias_in_force():
        raise ConfigError(f"{source}: the engine 'ray' needs the real Ray, and {INSTEAD}")
    if engine == "ray" and find_spec("ray") is None:
        raise ConfigError(
            f"{source}: the engine 'ray' needs Ray, which is not installed. Install it with: pip install "
            f"'paceline[ray]'. Or remove {_LINES_TO_REMOVE.get(source, source)}: workers are then processes on this "
            "machine ('local')."
        )
    check_engine(engine, source)


def _refuse_while_importing_main() -> None:
    """A helper process started by 'spawn' imports the user's script anew; a run there would never end."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        raise EngineError(
            "this process is a multiprocessing helper that imports your script again, and the script starts a run. "
            "Put the code that starts it under: if __name__ == '__main__':"
        )


def _forget_in_forked_child() -> None:
    """A forked child of the driver must neither use nor end its parent's workers."""
    global _lock
    _lock = threading.RLock()  # Another thread of the parent may have held the old one.
    _inherited.append(dict(_engines))  # Kept, so that no destructor touches what is the parent's.
    _engines.clear()


atexit.register(shutdown)
os.register_at_fork(after_in_child=_forget_in_forked_child)
