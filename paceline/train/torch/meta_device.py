"""Models and optimizers without data: tensors on the meta device have shapes and types, and take no memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@contextmanager
def without_data() -> Iterator[None]:
    """New tensors get no memory, and models stay without data when they are moved."""
    with warnings.catch_warnings(), torch.device("meta"), _StayOnMeta():  # type: ignore[no-untyped-call]
        warnings.filterwarnings("ignore", ".*copying from a non-meta parameter.*")
        yield


def needs_data(error: BaseException) -> bool:
    """Whether an error came because tensors had no data."""
    return isinstance(error, NotImplementedError) or "meta" in str(error).lower()


@contextmanager
def any_number() -> Iterator[None]:
    """Tensors without data have values: optimizers ask for norms, and what they allocate does not depend on them."""
    with _AnyNumber():  # type: ignore[no-untyped-call]
        yield


class _StayOnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`model.to(device)` would copy data that there is not."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.ops.aten._to_copy.default and args[0].is_meta:
            kwargs["device"] = torch.device("meta")
        return func(*args, **kwargs)


class _AnyNumber(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 1.0
        return func(*args, **(kwargs or {}))
