"""MLflow: ``MLflowLoggerCallback`` for the driver, ``setup_mlflow`` for workers."""

from __future__ import annotations

import importlib.util

from paceline.air.lazy import lazy_imports

if importlib.util.find_spec("mlflow") is None:
    raise ImportError("paceline.air.integrations.mlflow needs MLflow: pip install 'paceline[mlflow]'", name="mlflow")

with lazy_imports(__name__):
    from paceline.trackers.mlflow import MLflowLoggerCallback as MLflowLoggerCallback
    from paceline.trackers.mlflow_setup import setup_mlflow as setup_mlflow
