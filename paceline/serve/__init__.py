"""Online prediction: a checkpoint's model behind HTTP.

    serve.run(XGBoostPredictor, checkpoint)

answers ``POST /predict`` with JSON or Arrow bodies. It listens on this machine only and wants a token,
unless told otherwise.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("starlette") is None or find_spec("uvicorn") is None or find_spec("httptools") is None:
    raise ImportError(
        "paceline.serve needs starlette, uvicorn and httptools: pip install 'paceline[serve]'", name="starlette"
    )

from paceline.air.lazy import lazy_imports
from paceline.serve.start import app, run

_RUN = "serve.run(PredictorClass, checkpoint) serves a model, as `paceline serve <run or checkpoint>` does in a shell"
_ELSEWHERE = dict.fromkeys(("PredictorDeployment", "deployment"), _RUN)

with lazy_imports(__name__, advice=_ELSEWHERE):
    from paceline.serve.server import RunningServer

__all__ = ["RunningServer", "app", "run"]
