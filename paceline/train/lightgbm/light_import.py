"""Imports LightGBM as if scikit-learn were not installed.

LightGBM loads scikit-learn, where it is there, for its classes in that style: most of the second that its import
takes. A worker that is given parameters trains a booster and has no use for them. scikit-learn itself can be imported
afterwards as ever, for example by a metric of the user's.
"""

from __future__ import annotations

import sys


def _import() -> None:
    blocked = "sklearn" not in sys.modules and "lightgbm" not in sys.modules
    if blocked:
        sys.modules["sklearn"] = None  # type: ignore[assignment]  # what Python takes for "cannot be imported"
    try:
        import lightgbm  # noqa: F401
    finally:
        if blocked:
            del sys.modules["sklearn"]


_import()
