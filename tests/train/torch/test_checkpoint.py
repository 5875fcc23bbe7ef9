from __future__ import annotations

import collections
import io
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.air.checkpoint import Checkpoint
from paceline.air.checkpoint_trust import code_parts
from paceline.air.errors import CheckpointCorruptError, CheckpointError, ConfigError
from paceline.train.torch import TorchCheckpoint
from tests.air.damage import committed, flip


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(3, 2)


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


FORMS: list[Any] = [
    lambda checkpoint, folder: checkpoint,
    lambda checkpoint, folder: Checkpoint.from_directory(checkpoint.to_directory(folder)),
    lambda checkpoint, folder: Checkpoint.from_bytes(checkpoint.to_bytes()),
]


@pytest.mark.parametrize("form", FORMS, ids=["object", "directory", "bytes"])
def test_weights_come_back_in_every_form(form: Any, tmp_path: Path) -> None:
    model = linear()
    checkpoint = form(TorchCheckpoint.from_state_dict(model.state_dict()), tmp_path)
    assert type(checkpoint) is TorchCheckpoint
    assert same_weights(checkpoint.get_model(linear()), model)
    weights = checkpoint.to_dict()["model"]
    assert isinstance(weights, collections.OrderedDict)
    assert torch.equal(weights["bias"], model.bias)
    with pytest.raises(ConfigError, match=r"get_model\(MyModel\(\)\)"):
        checkpoint.get_model()


@pytest.mark.parametrize("form", FORMS, ids=["object", "directory", "bytes"])
def test_a_model_comes_back_in_every_form(form: Any, tmp_path: Path) -> None:
    model = linear()
    checkpoint = form(TorchCheckpoint.from_model(model), tmp_path)
    assert type(checkpoint.get_model()) is torch.nn.Linear
    assert same_weights(checkpoint.get_model(), model)
    into = linear()
    assert checkpoint.get_model(into) is into
    assert same_weights(into, model)
    assert isinstance(checkpoint.to_dict()["model"], torch.nn.Linear)


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("the file was unpickled",))


def test_a_model_of_a_class_in_a_function_is_stored_by_value(tmp_path: Path) -> None:
    def train_loop() -> TorchCheckpoint:
        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(2, 1)
                self.scale = lambda x: 2 * x

            def forward(self, x: Any) -> Any:
                return self.scale(self.layer(x))

        return TorchCheckpoint.from_model(Net())

    checkpoint = train_loop()
    model = checkpoint.get_model()
    for there in (TorchCheckpoint.from_bytes(checkpoint.to_bytes()), Checkpoint(checkpoint.to_directory(tmp_path))):
        loaded = TorchCheckpoint.from_checkpoint(there).get_model()
        assert loaded(torch.ones(1, 2)).tolist() == model(torch.ones(1, 2)).tolist()
    assert code_parts(Checkpoint(tmp_path)) == ["model_pickled.pt"]


def test_a_class_that_can_be_found_by_name_stays_the_same_class(tmp_path: Path) -> None:
    checkpoint = TorchCheckpoint.from_directory(TorchCheckpoint.from_model(Own()).to_directory(tmp_path))
    assert type(checkpoint.get_model()) is Own


class Own(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 1)


def test_weights_never_run_code(tmp_path: Path) -> None:
    folder = TorchCheckpoint.from_state_dict(linear().state_dict()).to_directory(tmp_path)
    stream = io.BytesIO()
    torch.save({"weight": Bomb()}, stream)
    Path(folder, "model_weights.pt").write_bytes(stream.getvalue())
    with pytest.raises(CheckpointError, match=r"model_weights\.pt.*tensors"):
        TorchCheckpoint.from_directory(folder).get_model(linear())


def test_weights_of_a_wrapped_model_fit_the_bare_one() -> None:
    model = linear()
    wrapped = {f"module.{name}": value for name, value in model.state_dict().items()}
    assert same_weights(TorchCheckpoint.from_state_dict(wrapped).get_model(linear()), model)


def test_a_dict_checkpoint_of_the_user_can_be_read(tmp_path: Path) -> None:
    model = linear()
    plain = Checkpoint.from_dict({"model": model.state_dict(), "epoch": 3})
    stored = Checkpoint.from_directory(plain.to_directory(tmp_path))
    assert same_weights(TorchCheckpoint.from_checkpoint(stored).get_model(linear()), model)
    with pytest.raises(CheckpointError, match=r"no model.*from_state_dict"):
        TorchCheckpoint.from_dict({"epoch": 3}).get_model(linear())


def test_the_wrong_thing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Linear.*from_model"):
        TorchCheckpoint.from_state_dict(linear())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"torch\.nn\.Module.*OrderedDict"):
        TorchCheckpoint.from_model(linear().state_dict())  # type: ignore[arg-type]


@pytest.mark.parametrize("whole", [False, True])
def test_a_damaged_model_of_a_run_is_noticed_and_other_files_do_not_matter(whole: bool, tmp_path: Path) -> None:
    make = TorchCheckpoint.from_model if whole else lambda model: TorchCheckpoint.from_state_dict(model.state_dict())
    source = Path(make(linear()).to_directory(tmp_path / "source"))
    (source / "optimizer.bin").write_bytes(b"o" * 1000)
    path = committed(Checkpoint.from_directory(source), tmp_path / "checkpoint")
    checkpoint = TorchCheckpoint.from_directory(path)
    flip(path / "optimizer.bin")
    checkpoint.get_model(linear())
    flip(path / "optimizer.bin")
    file = path / ("model_pickled.pt" if whole else "model_weights.pt")
    flip(file)
    for read in (lambda: checkpoint.get_model(linear()), checkpoint.to_dict):
        with pytest.raises(CheckpointCorruptError, match=file.name):
            read()
    file.unlink()
    with pytest.raises(CheckpointCorruptError, match=f"{file.name}.*missing"):
        checkpoint.get_model(linear())
