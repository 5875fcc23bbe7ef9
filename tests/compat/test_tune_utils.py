"""Helpers for people who write trainables."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air.errors import ConfigError
from paceline.tune.utils import (
    deep_update,
    diagnose_serialization,
    flatten_dict,
    merge_dicts,
    unflattened_lookup,
    validate_save_restore,
    wait_for_gpu,
)


def test_what_cannot_be_pickled_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    lock = threading.Lock()

    def train(config: dict[str, Any]) -> None:
        with lock:
            pass

    assert diagnose_serialization(train) == {lock}
    assert "lock" in capsys.readouterr().out
    assert diagnose_serialization(len) is True


class Adding(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.sum = 0

    def step(self) -> dict[str, Any]:
        self.sum += 1
        return {"sum": self.sum}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"sum": self.sum}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.sum = checkpoint["sum"]


class NeverLoading(Adding):
    def load_checkpoint(self, checkpoint: Any) -> None:
        raise KeyError("weights")


def test_a_class_that_continues_is_told_from_one_that_does_not() -> None:
    assert validate_save_restore(Adding) is True
    with pytest.raises(KeyError, match="weights"):
        validate_save_restore(NeverLoading)
    with pytest.raises(ConfigError, match=r"tune\.Trainable"):
        validate_save_restore(print)  # type: ignore[arg-type]


def test_a_gpu_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = tmp_path / "reads"
    program = tmp_path / "nvidia-smi"
    # Busy when it is asked for the first time, free from then on.
    program.write_text(
        f"#!/bin/sh\necho '0, GPU-a, 8000, 8000'\n"
        f"if [ -e {reads} ]; then echo '1, GPU-b, 10, 8000'; else echo '1, GPU-b, 4000, 8000'; fi\ntouch {reads}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b,GPU-a")
    with pytest.raises(RuntimeError, match="50%"):
        wait_for_gpu(retry=1)
    assert wait_for_gpu(1, delay_s=0) is True
    with pytest.raises(ValueError, match=r"'7'.*0, 1"):
        wait_for_gpu(7)
    with pytest.raises(RuntimeError, match="GPU 0"):
        wait_for_gpu(0, retry=2, delay_s=0)


def test_dicts_in_dicts() -> None:
    nested = {"a": {"b": 1, "c": {"d": 2}}, "e": [3]}
    assert flatten_dict(nested) == {"a/b": 1, "a/c/d": 2, "e": [3]}
    assert flatten_dict({"a": {"b": 1}}, delimiter=".") == {"a.b": 1}
    with pytest.raises(ValueError, match="'/'"):
        flatten_dict({"a": {"b/c": 1}}, prevent_delimiter=True)
    assert unflattened_lookup("a/c/d", nested) == 2
    assert unflattened_lookup("e/0", nested) == 3
    assert unflattened_lookup("a/x", nested, default=0) == 0
    assert merge_dicts(nested, {"a": {"b": 5}, "f": 6}) == {"a": {"b": 5, "c": {"d": 2}}, "e": [3], "f": 6}
    assert nested["a"] == {"b": 1, "c": {"d": 2}}
    with pytest.raises(KeyError, match="'x'"):
        deep_update({"a": 1}, {"x": 2})
    assert deep_update({"a": {}}, {"a": {"x": 2}}, allow_new_subkey_list=["a"]) == {"a": {"x": 2}}


@pytest.mark.parametrize("name", ["warn_if_slow", "UtilMonitor", "validate_warmstart"])
def test_other_helpers_name_a_way(name: str) -> None:
    with pytest.raises(ImportError, match=f"{name} does not exist here: "):
        exec(f"from paceline.tune.utils.util import {name}")
