from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.air.errors import CheckpointError
from paceline.train.torch import TorchCheckpoint
from paceline.train.torch.loading import check_version, load_plain


class Canary:
    def __init__(self, song: Path) -> None:
        self.song = song

    def __reduce__(self) -> Any:
        return (os.system, (f"touch '{self.song}'",))


def test_tensors_are_loaded(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "file.pt")
    assert load_plain(tmp_path / "file.pt")["weight"].tolist() == [1.0, 1.0]


def test_code_in_the_file_does_not_run(tmp_path: Path) -> None:
    torch.save({"weight": Canary(tmp_path / "song")}, tmp_path / "file.pt")
    with pytest.raises(pickle.UnpicklingError):
        load_plain(tmp_path / "file.pt")
    assert not (tmp_path / "song").exists()


@pytest.mark.parametrize("version", ["1.13.1", "2.0.0", "2.5.1+cu121"])
def test_versions_that_may_run_code_are_refused(version: str) -> None:
    """S5"""
    with pytest.raises(CheckpointError, match=rf"weights.pt.*{version.split('+')[0]}.*2\.6"):
        check_version(version, "weights.pt")


@pytest.mark.parametrize("version", ["2.6.0", "2.13.0+cpu", "3.0.0a0+git123", "unknown"])
def test_other_versions_are_accepted(version: str) -> None:
    check_version(version, "weights.pt")


def test_no_checkpoint_is_loaded_with_such_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S5, where a user meets it."""
    TorchCheckpoint.from_state_dict({"weight": torch.ones(2)}).to_directory(tmp_path / "saved")
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with pytest.raises(CheckpointError, match=r"Install torch 2\.6 or newer"):
        TorchCheckpoint.from_directory(tmp_path / "saved").get_model(torch.nn.Linear(1, 2))
