from __future__ import annotations

import sys
import types
from functools import partial
from typing import Any

import pytest

from paceline.train.imports import referred_modules


def run(source: str, **names: Any) -> Any:
    """What a script like this defines as `loop`."""
    namespace = {"__name__": "__main__", **names}
    exec(source, namespace)
    return namespace["loop"]


INSIDE = "def loop():\n    import horovod.torch as hvd\n    hvd.init()"
IN_A_HELPER = "def helper():\n    from tensorflow.data import Dataset\ndef loop():\n    helper()"
IN_A_LAMBDA = "def loop():\n    return [lambda: torch.ones(1)]"


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (run(INSIDE), "horovod.torch"),
        (partial(run(INSIDE)), "horovod.torch"),
        (run(IN_A_HELPER), "tensorflow.data"),
        (run(IN_A_LAMBDA), "torch"),
        (run("def loop():\n    hvd.init()", hvd=types.ModuleType("horovod.tensorflow")), "horovod.tensorflow"),
        ({"model": run(INSIDE)}, "horovod.torch"),
    ],
)
def test_what_is_named_is_found_and_not_imported(function: Any, name: str) -> None:
    loaded = set(sys.modules)
    assert name in referred_modules(None, function)
    assert set(sys.modules) == loaded


class Task:
    """As a user's object in a configuration may hide what it needs."""

    kept: Any = None

    def in_a_method(self) -> Any:
        import colorsys

        return colorsys.ONE_THIRD

    @staticmethod
    def in_a_static_method() -> Any:
        import netrc

        return netrc.netrc

    @property
    def in_a_property(self) -> Any:
        import wave

        return wave.WAVE_FORMAT_PCM


def test_what_collections_and_objects_hold_is_looked_into() -> None:
    def kept() -> Any:
        import sched

        return sched.Event

    task = Task()
    task.kept = kept
    wanted = {"colorsys", "netrc", "wave", "sched"}
    for value in (task, [task], (task,), {"tasks": [(1, task)]}, partial(print, task)):
        assert wanted <= referred_modules(value)
    assert "sched" in referred_modules({kept}, frozenset([kept]))


def test_a_long_list_of_numbers_hides_nothing_that_comes_later() -> None:
    assert "horovod.torch" in referred_modules({"rows": list(range(5000)), "loop": run(INSIDE)})


def test_values_that_hold_each_other_come_to_an_end() -> None:
    ring: dict[str, Any] = {"loop": run(INSIDE)}
    ring["itself"] = ring
    assert "horovod.torch" in referred_modules(ring)
    assert "horovod.torch" not in referred_modules(3, print, {"a": [1]})
