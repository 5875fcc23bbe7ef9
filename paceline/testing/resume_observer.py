"""What assert_resume_equivalent() watches inside a worker. A fault at the point "train_begin" calls `watch`.

It writes one file per rank and attempt: a line for each report (metrics, states of random generators, positions in
datasets), for the loop's question for a checkpoint and, in a resumed attempt, for each optimizer, scheduler and module
that PyTorch creates or loads. Nothing of it changes what the loop computes, except that generators are seeded first.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import sys
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from paceline.air import faults
from paceline.air.metrics import plain_metrics

FOLDER = "observed"
"""Below the directory of the notes."""
SEED = 20_731

_own = f"{os.sep}paceline{os.sep}"
_generators: list[tuple[str, Any]] = []
"""Of numpy, as the loop makes them."""


def watch() -> None:
    """Begin to watch this worker."""
    notes = _Notes()
    # Two runs begin alike. A resumed attempt does not: it must restore the state that it needs.
    seed = SEED + 1000 * int(faults.role["attempt"]) + int(faults.role["rank"])
    random.seed(seed)
    _watch_session(notes)

    def with_numpy(numpy_random: Any) -> None:
        numpy_random.seed(seed)
        _watch_numpy_generators(numpy_random)

    def with_torch(torch: Any) -> None:
        torch.manual_seed(seed)
        if faults.role["attempt"] != "0":
            _watch_torch(notes)

    _once_imported({"numpy.random": with_numpy, "torch": with_torch})


class _Notes:
    """Where this rank writes what it sees."""

    def __init__(self) -> None:
        folder = Path(os.environ[faults.NOTES_VARIABLE]) / FOLDER
        folder.mkdir(exist_ok=True)
        name = f"attempt_{faults.role['attempt']}_rank_{faults.role['rank']}.jsonl"
        self._file = (folder / name).open("a", buffering=1)
        self._lock = threading.Lock()

    def write(self, event: str, **facts: Any) -> None:
        with self._lock:
            self._file.write(json.dumps({"event": event, **facts}) + "\n")


# -- modules ------------------------------------------------------------------------------


def _once_imported(actions: dict[str, Callable[[Any], None]]) -> None:
    """Call each action with its module: now, or as soon as the loop has imported it."""
    waiting = {}
    for name, act in actions.items():
        if name in sys.modules:
            act(sys.modules[name])
        else:
            waiting[name] = act
    sys.meta_path.insert(0, _ActsAfterImport(waiting))


class _ActsAfterImport(MetaPathFinder):
    """Finds modules as Python does, and has something done when they have been loaded."""

    def __init__(self, actions: dict[str, Callable[[Any], None]]) -> None:
        self._actions = actions

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        act = self._actions.pop(fullname, None)
        spec = None if act is None else find_spec(fullname)
        if act is None or spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_act(module: ModuleType) -> None:
            load(module)
            act(module)

        spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec


# -- reports ------------------------------------------------------------------------------


def _watch_session(notes: _Notes) -> None:
    from paceline.run.session import Session

    report, get_checkpoint = Session.report, Session.get_checkpoint

    @wraps(report)
    def watched_report(self: Session, metrics: Any, *arguments: Any, **keywords: Any) -> Any:
        notes.write(
            "report",
            step=self.rows_before + self.reports + 1,
            metrics=plain_metrics(metrics)[0],
            random=_random_states(),
            shards={name: shard.state_dict() for name, shard in self.shards.items()},
            loader_epochs=self.loader_epochs.now(),
        )
        return report(self, metrics, *arguments, **keywords)

    @wraps(get_checkpoint)
    def watched_get_checkpoint(self: Session) -> Any:
        notes.write("asked for checkpoint")
        return get_checkpoint(self)

    Session.report = watched_report  # type: ignore[method-assign]
    Session.get_checkpoint = watched_get_checkpoint  # type: ignore[method-assign]


def _random_states() -> dict[str, str]:
    """A digest for each generator that can be found."""
    states = {"random": _digest(repr(random.getstate()).encode())}
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy.random"] = _digest(keys.tobytes() + repr((kind, rest)).encode())
    for name, generator in _generators:
        states[name] = _digest(repr(generator.bit_generator.state).encode())
    if "torch" in sys.modules:
        states["torch"] = _digest(sys.modules["torch"].get_rng_state().numpy().tobytes())
    return states


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _watch_numpy_generators(numpy_random: Any) -> None:
    default_rng = numpy_random.default_rng

    @wraps(default_rng)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        generator = default_rng(*arguments, **keywords)
        if len(_generators) < 100:
            _generators.append((f"numpy.random.default_rng() made at {_users_line()}", generator))
        return generator

    numpy_random.default_rng = watched


# -- PyTorch ------------------------------------------------------------------------------


def _watch_torch(notes: _Notes) -> None:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    _watch_class(notes, Optimizer, "optimizer")
    _watch_class(notes, LRScheduler, "scheduler")
    load = Module.load_state_dict

    @wraps(load)
    def watched_load(self: Module, *arguments: Any, **keywords: Any) -> Any:
        notes.write("loaded", kind="module")
        return load(self, *arguments, **keywords)

    Module.load_state_dict = watched_load  # type: ignore[method-assign]


def _watch_class(notes: _Notes, base: Any, kind: str) -> None:
    """Note each object of a class or its subclasses, and whether it is given a state.

    Not every subclass calls the constructor of its base class, or its load_state_dict. So `__new__` is watched, and the
    methods of each class that occurs.
    """
    known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    numbers = itertools.count()
    watched_classes: set[type] = set()

    def loads(load: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(load)
        def watched(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if self in known:
                notes.write("loaded", kind=kind, number=known[self])
            return load(self, *arguments, **keywords)

        return watched

    def new(cls: type, *arguments: Any, **keywords: Any) -> Any:
        for each in cls.__mro__:
            if each not in watched_classes and "load_state_dict" in vars(each):
                watched_classes.add(each)
                each.load_state_dict = loads(vars(each)["load_state_dict"])  # type: ignore[attr-defined]
        made: Any = object.__new__(cls)
        known[made] = next(numbers)
        notes.write("created", kind=kind, number=known[made], type=cls.__name__, at=_users_line())
        return made

    base.__new__ = staticmethod(new)


def _users_line() -> str:
    """The nearest line that is not of an installed package or of paceline."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if "site-packages" not in file and _own not in file and not file.startswith("<frozen"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
