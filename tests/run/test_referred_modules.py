from __future__ import annotations

import sys
import types
from functools import partial
from typing import Any

import pytest

from paceline.run.referred_modules import referred_modules


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


def test_values_that_hold_each_other_come_to_an_end() -> None:
    ring: dict[str, Any] = {"loop": run(INSIDE)}
    ring["itself"] = ring
    assert "horovod.torch" in referred_modules(ring)
    assert "horovod.torch" not in referred_modules(3, print, {"a": [1]})
