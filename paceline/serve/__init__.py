"""Online prediction: a checkpoint's model behind HTTP.

    serve.run(XGBoostPredictor, checkpoint)

answers ``POST /predict`` with JSON or Arrow bodies. It listens on this machine only and wants a token,
unless told otherwise.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("starlette") is None or find_spec("uvicorn") is None or find_spec("httptools") is None:
    raise ImportError(
        "paceline.serve needs starlette, uvicorn and httptools: pip install 'paceline[serve]'", name="starlette"
    )

from paceline.air.absent import no_such_name
from paceline.serve.start import app, run

if TYPE_CHECKING:
    from paceline.serve.server import RunningServer as RunningServer

_RUN = "serve.run(PredictorClass, checkpoint) serves a model, as `paceline serve <run or checkpoint>` does in a shell"
_ELSEWHERE = dict.fromkeys(("PredictorDeployment", "deployment"), _RUN)

__all__ = ["RunningServer", "app", "run"]


def __getattr__(name: str) -> Any:
    if name == "RunningServer":
        from paceline.serve.server import RunningServer

        return RunningServer
    raise no_such_name(__name__, name, _ELSEWHERE)
