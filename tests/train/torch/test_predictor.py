"""TorchPredictor: tensors in, tensors out, the model left as it was."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from paceline import data
from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessors import BatchMapper, Chain, Concatenator, StandardScaler
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.torch import TorchCheckpoint, TorchDetectionPredictor, TorchPredictor


class Seen(torch.nn.Module):
    """Gives back what it was given, and remembers it."""

    def forward(self, inputs: Any) -> Any:
        self.inputs = inputs
        self.mode, self.gradients = self.training, torch.is_grad_enabled()
        return inputs


class Plus(torch.nn.Module):
    """Two columns and two outputs."""

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": inputs["a"] + inputs["b"], "both": torch.stack([inputs["a"], inputs["b"]], dim=1)}


def linear() -> torch.nn.Linear:
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 10.0]]))
        model.bias.fill_(0.5)
    return model


# -- kinds of data ----------------------------------------------------------------------------


def test_an_array_is_one_tensor_and_answered_by_column() -> None:
    given = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    answer = TorchPredictor(linear()).predict(given)
    assert list(answer) == ["predictions"]
    assert answer["predictions"].tolist() == [[21.5], [43.5]]
    assert answer["predictions"].dtype == np.float32


def test_an_array_goes_through_the_preprocessor() -> None:
    half = BatchMapper(lambda array: array.astype(np.float32) / 2, "numpy")
    answer = TorchPredictor(linear(), preprocessor=half).predict(np.array([[2, 4], [6, 8]]))
    assert answer["predictions"].tolist() == [[21.5], [43.5]]


def test_a_single_column_is_one_tensor_whichever_kind_of_table_it_is_in() -> None:
    cells = np.arange(6, dtype=np.float32).reshape(3, 2)
    for given in ({"x": cells}, pd.DataFrame({"x": list(cells)}), data.from_numpy(cells).to_arrow()):
        model = Seen()
        answer = TorchPredictor(model).predict(given)
        assert type(answer) is type(given)
        assert model.inputs.tolist() == cells.tolist()
        values = answer["predictions"]
        found = values.combine_chunks().to_numpy_ndarray() if isinstance(given, pa.Table) else np.stack(list(values))
        assert found.tolist() == cells.tolist()


def test_several_columns_are_a_dict_of_tensors_and_so_are_outputs() -> None:
    answer = TorchPredictor(Plus()).predict(pd.DataFrame({"a": [1, 2], "b": [3, 4]}))
    assert list(answer.columns) == ["sum", "both"]
    assert answer["sum"].tolist() == [4, 6]
    assert [cell.tolist() for cell in answer["both"]] == [[1, 3], [2, 4]]
    table = TorchPredictor(Plus()).predict(pa.table({"a": [1, 2], "b": [3, 4]}))
    assert table.schema.field("both").type == pa.fixed_shape_tensor(pa.int64(), [2])


def test_types_of_tensors_can_be_chosen() -> None:
    model = Seen()
    TorchPredictor(model).predict({"x": np.array([1, 2])}, dtype=torch.float32)
    assert model.inputs.dtype is torch.float32
    TorchPredictor(model).predict({"x": np.array([1, 2]), "y": np.array([1, 2])}, dtype={"y": torch.float16})
    assert (model.inputs["x"].dtype, model.inputs["y"].dtype) == (torch.int64, torch.float16)
    TorchPredictor(model).predict(np.array([1, 2]), dtype="bfloat16")
    assert model.inputs.dtype is torch.bfloat16
    with pytest.raises(ConfigError, match=r"dtype.*array"):
        TorchPredictor(model).predict(np.array([1, 2]), dtype={"x": torch.float32})
    with pytest.raises(ConfigError, match=r"'z'.*'x'"):
        TorchPredictor(model).predict({"x": np.array([1])}, dtype={"z": torch.float32})


def test_a_model_may_write_to_what_it_gets() -> None:
    class Overwrite(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs.mul_(0)

    table, array = pa.table({"x": [1.0, 2.0]}), np.array([1.0, 2.0])
    TorchPredictor(Overwrite()).predict(table)
    TorchPredictor(Overwrite()).predict(array)
    assert table["x"].to_pylist() == array.tolist() == [1.0, 2.0]


# -- the model --------------------------------------------------------------------------------


def test_the_model_is_evaluated_without_gradients_and_left_as_it_was() -> None:
    frozen, seen = torch.nn.BatchNorm1d(2), Seen()
    model = torch.nn.Sequential(torch.nn.Dropout(0.9), frozen, seen)
    model.train()
    frozen.eval()
    given = np.ones((4, 2), dtype=np.float32)
    answer = TorchPredictor(model).predict(given)
    assert (seen.mode, seen.gradients) == (False, False)
    assert np.allclose(answer["predictions"], given, atol=1e-4)  # nothing was dropped
    assert [module.training for module in model.modules()] == [True, True, False, True]


def test_the_mode_comes_back_after_an_error_too() -> None:
    model = torch.nn.Linear(3, 1).train()
    with pytest.raises(DataError):
        TorchPredictor(model).predict(np.ones((2, 2), dtype=np.float32))
    assert model.training


def test_a_model_can_be_called_in_another_way() -> None:
    class Pair(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, str]:
            return a * b, "not wanted"

    class PairPredictor(TorchPredictor):
        def call_model(self, inputs: Any) -> Any:
            return self.model(inputs["a"], inputs["b"])[0]

    assert PairPredictor(Pair()).predict({"a": np.array([2]), "b": np.array([3])})["predictions"].tolist() == [6]


def test_a_parallel_model_is_unwrapped() -> None:
    model = linear()
    answer = TorchPredictor(torch.nn.DataParallel(model)).predict(np.ones((1, 2), dtype=np.float32))
    assert answer["predictions"].tolist() == [[11.5]]


# -- checkpoints ------------------------------------------------------------------------------


def test_from_a_checkpoint_of_a_model_or_of_weights(tmp_path: Path) -> None:
    given = np.ones((1, 2), dtype=np.float32)
    answer = TorchPredictor.from_checkpoint(TorchCheckpoint.from_model(linear())).predict(given)
    assert answer["predictions"].tolist() == [[11.5]]
    weights = TorchCheckpoint.from_state_dict(linear().state_dict())
    stored = Checkpoint(weights.to_directory(tmp_path))
    predictor = TorchPredictor.from_checkpoint(stored, model=torch.nn.Linear(2, 1))
    assert predictor.predict(given)["predictions"].tolist() == [[11.5]]
    with pytest.raises(ConfigError, match=r"weights.*get_model\("):
        TorchPredictor.from_checkpoint(stored)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_whole_dataset_with_its_preprocessor(workers: int) -> None:
    frame = pd.DataFrame({"a": np.arange(100.0), "b": np.arange(100.0) ** 2, "id": range(100)})
    rows = data.from_pandas(frame).repartition(3)
    chain = Chain(StandardScaler(["a", "b"]), Concatenator(include=["a", "b"], dtype=np.float32)).fit(rows)
    model = linear()
    predictor = BatchPredictor.from_checkpoint(TorchCheckpoint.from_model(model, preprocessor=chain), TorchPredictor)
    result = predictor.predict(
        rows, feature_columns=["concat_out"], keep_columns=["id"], batch_size=16, min_scoring_workers=workers
    ).to_pandas()
    scaled = (frame[["a", "b"]] - frame[["a", "b"]].mean()) / frame[["a", "b"]].std(ddof=0)
    expected = model(torch.tensor(scaled.to_numpy(dtype=np.float32))).detach().numpy()
    assert np.allclose(np.stack(result["predictions"]), expected, atol=1e-4)
    assert result["id"].tolist() == list(range(100))


def test_weights_and_a_model_for_a_whole_dataset() -> None:
    checkpoint = TorchCheckpoint.from_state_dict(linear().state_dict())
    rows = data.from_numpy(np.ones((3, 2), dtype=np.float32))
    result = BatchPredictor(checkpoint, model=torch.nn.Linear(2, 1)).predict(rows, min_scoring_workers=2)
    assert [row["predictions"].tolist() for row in result.take_all()] == [[11.5]] * 3


def test_weights_without_a_model_are_told() -> None:
    checkpoint = TorchCheckpoint.from_state_dict(linear().state_dict())
    rows = data.from_numpy(np.ones((3, 2), dtype=np.float32))
    with pytest.raises(DataError, match=r"BatchPredictor\(TorchPredictor\).*weights.*get_model\("):
        BatchPredictor(checkpoint).predict(rows).take_all()


# -- errors -----------------------------------------------------------------------------------


def test_columns_that_a_model_cannot_take_are_told_with_the_way_out() -> None:
    with pytest.raises(DataError, match=r"'a': int64.*\(1,\).*TypeError: linear.*Concatenator"):
        TorchPredictor(linear()).predict(pd.DataFrame({"a": [1], "b": [2]}))


def test_a_wrong_type_is_told_with_the_way_out() -> None:
    with pytest.raises(DataError, match=r"float64.*\(1, 2\).*RuntimeError.*dtype="):
        TorchPredictor(linear()).predict(np.ones((1, 2)))


def test_text_is_no_tensor() -> None:
    with pytest.raises(DataError, match=r"'name'.*string.*tensor"):
        TorchPredictor(Seen()).predict({"name": np.array(["a"])})


class Returns(torch.nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, inputs: Any) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((torch.zeros(1),), "tuple.*tensor.*call_model"),
        ({"x": [1.0]}, "list.*'x'"),
        (torch.zeros(()), "'predictions'.*single value"),
        (torch.zeros(3), "3 rows.* 1 "),
        ({"x": torch.zeros(1), "y": torch.zeros(2)}, "'y'.*2 rows"),
    ],
)
def test_an_output_of_the_wrong_form_is_an_error(value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        TorchPredictor(Returns(value)).predict(np.ones(1))


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"torch\.nn\.Module.*dict"):
        TorchPredictor({})  # type: ignore[arg-type]


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"use_gpu=True.*PyTorch"):
        TorchPredictor(linear(), use_gpu=True)


# -- detection --------------------------------------------------------------------------------


class Detect(torch.nn.Module):
    """Finds as many objects as an image has rows."""

    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        assert isinstance(images, list)
        return [
            {"boxes": torch.ones(len(image), 4) * image.sum(), "labels": torch.arange(len(image))} for image in images
        ]


@pytest.mark.parametrize("heights", [(1, 2, 3), (2, 2, 2)], ids=["of several sizes", "of one size"])
def test_any_number_of_objects_per_image(heights: tuple[int, ...]) -> None:
    images = [np.full((height, 2), 0.5, dtype=np.float32) for height in heights]
    column = np.empty(3, dtype=object)
    column[:] = images
    answer = TorchDetectionPredictor(Detect()).predict({"image": column})
    assert list(answer) == ["pred_boxes", "pred_labels"]
    assert [cell.shape for cell in answer["pred_boxes"]] == [(height, 4) for height in heights]
    assert [cell[0, 0] for cell in answer["pred_boxes"]] == [float(height) for height in heights]
    rows = data.from_items([{"image": image, "id": number} for number, image in enumerate(images)])
    predictor = BatchPredictor(TorchCheckpoint.from_model(Detect()), TorchDetectionPredictor)
    found = predictor.predict(rows, feature_columns=["image"], keep_columns=["id"]).take_all()
    assert [len(row["pred_labels"]) for row in found] == list(heights)
    assert [row["id"] for row in found] == [0, 1, 2]


def test_detection_takes_one_column_of_images() -> None:
    predictor = TorchDetectionPredictor(Detect())
    with pytest.raises(ConfigError, match=r"\['a', 'b'\].*feature_columns"):
        predictor.predict({"a": np.ones((1, 2)), "b": np.ones((1, 2))})
    with pytest.raises(DataError, match=r"Tensor.*list.*dict.*TorchPredictor"):
        TorchDetectionPredictor(Returns(torch.zeros(1))).predict({"a": np.ones((1, 2))})


class Waits(torch.nn.Module):
    """Waits until the gate with the number that it is given is open, and says in which mode it then is."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gates = threading.Semaphore(0), [threading.Event(), threading.Event()]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.entered.release()
        assert self.gates[int(inputs[0])].wait(30)
        return torch.full_like(inputs, float(self.training))


def test_predictions_in_several_threads_do_not_change_the_mode_for_each_other() -> None:
    model = Waits()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(TorchPredictor(model).predict, np.array([0.0]))
        assert model.entered.acquire(timeout=30)
        second = threads.submit(TorchPredictor(model).predict, np.array([1.0]))
        assert model.entered.acquire(timeout=30)
        model.gates[0].set()
        assert first.result()["predictions"].tolist() == [0.0]
        model.gates[1].set()
        assert second.result()["predictions"].tolist() == [0.0]
    assert model.training
