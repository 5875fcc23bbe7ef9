"""TorchVisionPreprocessor, with transforms of the kinds that torchvision has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import paceline.data
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessors import TorchVisionPreprocessor

IMAGES = np.arange(5 * 4 * 6 * 3, dtype=np.uint8).reshape(5, 4, 6, 3)


def images() -> paceline.data.Dataset:
    return paceline.data.from_numpy(IMAGES)


def normalize(image: torch.Tensor) -> torch.Tensor:
    assert isinstance(image, torch.Tensor)
    assert image.shape == (4, 6, 3)
    return (image.float() / 255 - 0.5) / 0.25


def array_to_tensor(image: Any) -> torch.Tensor:
    """Like ToTensor: refuses tensors, and turns an array's channels to the front."""
    if not isinstance(image, np.ndarray):
        raise TypeError(f"image must be an array, not {type(image)}")
    return torch.from_numpy(image).permute(2, 0, 1) / 255


def test_each_image_is_transformed() -> None:
    batch = TorchVisionPreprocessor(["data"], transform=normalize).transform(images()).take_batch(5)
    np.testing.assert_allclose(batch["data"], (IMAGES.astype(np.float32) / 255 - 0.5) / 0.25, rtol=1e-6)
    assert batch["data"].dtype == np.float32


def test_transforms_that_take_arrays_only() -> None:
    batch = TorchVisionPreprocessor(["data"], transform=array_to_tensor).transform(images()).take_batch(5)
    np.testing.assert_allclose(batch["data"], IMAGES.transpose(0, 3, 1, 2) / 255, rtol=1e-6)


def test_modules_and_whole_batches_and_other_columns() -> None:
    pool = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d((2, 2)))
    ds = paceline.data.from_numpy(IMAGES.astype(np.float32).transpose(0, 3, 1, 2))
    preprocessor = TorchVisionPreprocessor(["data"], transform=pool, output_columns=["small"], batched=True)
    batch = preprocessor.transform(ds).take_batch(5)
    assert batch["small"].shape == (5, 3, 2, 2)
    assert batch["data"].shape == (5, 3, 4, 6)
    np.testing.assert_allclose(batch["small"].mean(axis=(2, 3)), batch["data"].mean(axis=(2, 3)), rtol=1e-5)


def test_images_of_different_sizes() -> None:
    ragged = [np.ones((height, 2), np.float32) for height in (1, 3, 2)]
    frame = pd.DataFrame({"data": ragged})
    resized = TorchVisionPreprocessor(["data"], transform=lambda image: image.sum(dim=0)).transform_batch(frame)
    assert [row.tolist() for row in resized["data"]] == [[1, 1], [3, 3], [2, 2]]
    doubled = TorchVisionPreprocessor(["data"], transform=lambda image: image * 2).transform_batch(frame)
    assert [row.shape for row in doubled["data"]] == [(1, 2), (3, 2), (2, 2)]
    with pytest.raises(DataError, match=r"batched=False"):
        TorchVisionPreprocessor(["data"], transform=lambda image: image, batched=True).transform_batch(frame)


def test_transforms_that_return_something_else() -> None:
    with pytest.raises(DataError, match=r"list.*'data'"):
        TorchVisionPreprocessor(["data"], transform=lambda image: image.tolist()).transform(images()).take_all()
    with pytest.raises(DataError, match=r"1 images of \d+"):
        TorchVisionPreprocessor(["data"], transform=lambda batch: batch[:1], batched=True).transform_batch(
            {"data": IMAGES}
        )


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match=r"transform.*\b3\b"):
        TorchVisionPreprocessor(["data"], transform=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="as many as"):
        TorchVisionPreprocessor(["data"], transform=normalize, output_columns=["a", "b"])
