"""Imports a tree library as if scikit-learn were not installed.

The libraries load scikit-learn, where it is there, for their classes in that style: most of the second that their
import takes. A worker that is given parameters trains a booster and has no use for them. scikit-learn itself can be
imported afterwards as ever, for example by a metric of the user's.
"""

from __future__ import annotations

import importlib
import sys


def import_without_sklearn(library: str) -> None:
    blocked = "sklearn" not in sys.modules and library not in sys.modules
    if blocked:
        sys.modules["sklearn"] = None  # type: ignore[assignment]  # what Python takes for "cannot be imported"
    try:
        importlib.import_module(library)
    finally:
        if blocked:
            del sys.modules["sklearn"]
