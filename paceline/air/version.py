"""The version of this package, for those who may not import it: the package itself imports all layers."""

from __future__ import annotations

import sys


def version() -> str:
    return str(sys.modules["paceline"].__version__)
