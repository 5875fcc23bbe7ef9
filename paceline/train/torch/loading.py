"""Load tensors from a file without running code that the file may contain."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, BinaryIO

from paceline.air.errors import CheckpointError

SAFE_SINCE = (2, 6)
"""Earlier versions could be made to run code in spite of ``weights_only=True`` (CVE-2025-32434)."""


def load_plain(path: str | Path | BinaryIO, **arguments: Any) -> Any:
    """`torch.load` of tensors and plain values. Raises pickle.UnpicklingError if the file holds anything else."""
    import torch

    check_version(torch.__version__, path)
    return torch.load(path, weights_only=True, **arguments)


def check_version(version: str, path: str | Path | BinaryIO) -> None:
    """Refuse to load with a version of PyTorch that cannot do it safely. A version that cannot be read is accepted."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and tuple(map(int, numbers.groups())) < SAFE_SINCE:
        raise CheckpointError(
            f"{path} was not loaded: PyTorch {version} may run code that such a file contains, even with "
            "weights_only=True. Install torch 2.6 or newer."
        )
