"""Corrects modules of a framework when the user's code imports them, if it ever does; nothing is imported for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """For each module, by name, what is done with it once it has run. The import stays that of the other finders."""

    def __init__(self, actions: Mapping[str, Action]) -> None:
        self._actions = actions
        self._done: set[ModuleType] = set()

    def install(self) -> None:
        """Modules that are loaded already get their turn now."""
        if self in sys.meta_path:
            return
        sys.meta_path.insert(0, self)
        for name in self._actions:
            module = sys.modules.get(name)
            if module is not None and module not in self._done:
                self.act(module)

    def remove(self) -> None:
        """What was done stays done."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def act(self, module: ModuleType) -> None:
        self._actions[module.__name__](module)
        self._done.add(module)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._actions:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ThenAct(spec.loader, self)
                return spec
        return None


class _ThenAct(Loader):
    def __init__(self, loader: Loader, hook: AfterImport) -> None:
        self._loader = loader
        self._hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._hook.act(module)
