"""Functions and Trainable classes need no connection between workers: there is one. It has loaded what they import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.run.backend import Backend, BackendConfig
from paceline.train.referred_modules import referred_modules

_OURS = (
    "paceline.tune.trainable.function",
    "paceline.tune.trainable.class_loop",
    "paceline.tune.trainable.legacy_session",
)
_SLOW_TO_IMPORT = frozenset(["numpy", "pandas", "scipy", "sklearn"])
_ONLY_ONE_OF = ("torch", "xgboost", "lightgbm")
"""Each brings threads of its own kind: two of them are not loaded into one process that forks."""
_IMPORTED_LATER = ("torch._dynamo", "torch.profiler._cupti_monitor", "torch.utils.serialization.config")
"""Pulled in by the first optimizer and the first torch.save: hundreds of modules, seconds in each trial."""


class TrainableBackend(Backend):
    """Has the modules that every such trial needs loaded before it is forked."""

    preload: ClassVar[tuple[str, ...]] = _OURS
    thread_setters: ClassVar[tuple[str, ...]] = ("torch:set_num_threads",)


@dataclass
class TrainableBackendConfig(BackendConfig):
    """What is to be loaded besides."""

    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        later = _IMPORTED_LATER if any(name.partition(".")[0] == "torch" for name in self.modules) else ()
        names = {"preload": (*_OURS, *self.modules, *later)}
        self._backend: type[Backend] = type("TrainableBackend", (TrainableBackend,), names)

    @property
    def backend_cls(self) -> type[Backend]:
        return self._backend


def libraries_of(*values: Any) -> tuple[str, ...]:
    """Well-known libraries that functions, classes and other values refer to. Each trial would import them anew, which
    can take longer than the trial itself; code of the user's own is not imported before it is used."""
    named = referred_modules(*values)
    roots = {name.partition(".")[0] for name in named}
    single = next((name for name in _ONLY_ONE_OF if name in roots), None)
    wanted = _SLOW_TO_IMPORT | {"paceline"} | ({single} if single else set())
    return tuple(sorted(name for name in named if name.partition(".")[0] in wanted))
