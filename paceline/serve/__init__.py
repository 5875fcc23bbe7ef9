"""Online prediction: a checkpoint's model behind HTTP.

    serve.run(XGBoostPredictor, checkpoint)

answers ``POST /predict`` with JSON or Arrow bodies. It listens on this machine only and wants a token,
unless told otherwise.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("fastapi") is None or find_spec("uvicorn") is None or find_spec("httptools") is None:
    raise ImportError(
        "paceline.serve needs fastapi, uvicorn and httptools: pip install 'paceline[serve]'", name="fastapi"
    )

from paceline.serve.start import app, run

if TYPE_CHECKING:
    from paceline.serve.server import RunningServer as RunningServer

__all__ = ["RunningServer", "app", "run"]


def __getattr__(name: str) -> Any:
    if name == "RunningServer":
        from paceline.serve.server import RunningServer

        return RunningServer
    if name == "PredictorDeployment":
        # Of an AttributeError, `from paceline.serve import PredictorDeployment` would drop the text.
        raise ImportError(
            "paceline.serve has no PredictorDeployment and needs none: serve.run(PredictorClass, checkpoint) serves a "
            "model, and on the command line `paceline serve <run or checkpoint>` does.",
            name=__name__,
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
