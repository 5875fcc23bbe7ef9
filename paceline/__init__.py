"""Distributed training on one machine or many, with results you can trust.

Everything is reached from here on first use, so that ``import paceline`` stays cheap:
the packages (``paceline.air``, ``paceline.train.torch``, ...), ``Secret``, and ``init``,
``shutdown``, ``is_initialized``.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.air.absent import install
from paceline.air.lazy import lazy_imports

__version__ = "0.1.0"

_PACKAGES = (
    *("air", "cli", "compat", "data", "engine", "ray", "run", "serve", "storage", "testing", "trackers", "train"),
    *("tune", "view", "web"),
)


def _advice() -> Mapping[str, str]:
    from paceline.air.ray_alias import ADVICE

    return ADVICE


with lazy_imports(__name__, _PACKAGES, _advice):
    from paceline import air as air
    from paceline import data as data
    from paceline import serve as serve
    from paceline import train as train
    from paceline import tune as tune
    from paceline import view as view
    from paceline.air.secrets import Secret as Secret
    from paceline.engine.choose import init as init
    from paceline.engine.choose import is_initialized as is_initialized
    from paceline.engine.choose import shutdown as shutdown

install()  # import statements say what to write instead of a name that does not exist
