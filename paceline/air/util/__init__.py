"""Old path of a few tools."""

from __future__ import annotations

from typing import NoReturn

from paceline.air.absent import no_such_name

_TENSORS = "columns of a Dataset may hold numpy arrays of any shape; no extension type is needed"
_ADVICE = {"tensor_extensions": _TENSORS}


def __getattr__(name: str) -> NoReturn:
    raise no_such_name(__name__, name, _ADVICE)
