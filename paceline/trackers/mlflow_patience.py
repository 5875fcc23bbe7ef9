"""How long a call of MLflow takes at most when its server has died.

MLflow tries a request again for four minutes, and gives its caller no way to say otherwise but an environment variable,
which workers would inherit. The courier tries again itself, and wants to know at once. So the variable gets another
value in the courier's thread alone; for everybody else nothing changes.
"""

from __future__ import annotations

import os
import threading
from typing import Any

RETRIES = 1
VARIABLE = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"

_impatient: set[int] = set()
"""The threads that try again themselves."""


class _Retries:
    """Stands in for MLflow's object that reads the variable."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def get(self) -> Any:
        is_chosen = VARIABLE in os.environ
        return RETRIES if threading.get_ident() in _impatient and not is_chosen else self._original.get()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def be_impatient() -> None:
    """Let MLflow give up early in this thread, unless the user has set the variable."""
    from mlflow.utils import rest_utils

    _impatient.add(threading.get_ident())
    original = getattr(rest_utils, VARIABLE, None)
    if original is not None and not isinstance(original, _Retries):
        setattr(rest_utils, VARIABLE, _Retries(original))
