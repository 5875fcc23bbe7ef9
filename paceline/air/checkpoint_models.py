"""Boosters in a dict checkpoint, as files of their libraries' own formats, which are read without unpickling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline.air.constants import MODEL_KEY

XGBOOST_MODEL = ".dict_model.ubj"
LIGHTGBM_MODEL = ".dict_model.txt"
LIGHTGBM_DETAILS = ".dict_model_details.json"
MODEL_FILES = frozenset([XGBOOST_MODEL, LIGHTGBM_MODEL, LIGHTGBM_DETAILS])


def model_files(data: Mapping[str, Any]) -> dict[str, bytes]:
    """By name, the files of the booster that is the item "model"; empty if that is anything else.

    Boosters are recognised by the names of their classes: no framework is imported here.
    """
    model = data.get(MODEL_KEY)
    kind = type(model)
    library = kind.__module__.partition(".")[0]
    if model is None or kind.__name__ != "Booster":
        return {}
    if library == "xgboost":
        return {XGBOOST_MODEL: bytes(model.save_raw("ubj"))}
    if library == "lightgbm":
        details = {"best_iteration": model.best_iteration, "features": None, "evaluations": [], "rounds": None}
        text = model.model_to_string(num_iteration=-1)
        return {LIGHTGBM_MODEL: text.encode(), LIGHTGBM_DETAILS: json.dumps(details).encode()}
    return {}
