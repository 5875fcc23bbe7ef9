"""Parameters that XGBoost has no use for: it says so in the output of a worker, and trains without them."""

from __future__ import annotations

import re
import warnings
from typing import Any

import xgboost

_UNUSED = re.compile(r"Parameters: \{(.*?)\} are not used", re.DOTALL)
_OFTEN = (
    *(
        "max_depth",
        "learning_rate",
        "eta",
        "gamma",
        "min_split_loss",
        "min_child_weight",
        "max_delta_step",
        "subsample",
    ),
    *("sampling_method", "colsample_bytree", "colsample_bylevel", "colsample_bynode", "reg_lambda", "lambda"),
    *("reg_alpha", "alpha", "tree_method", "scale_pos_weight", "grow_policy", "max_leaves", "max_bin", "booster"),
    *("num_parallel_tree", "monotone_constraints", "interaction_constraints", "multi_strategy", "nthread", "seed"),
    *("max_cat_to_onehot", "max_cat_threshold", "device", "verbosity", "objective", "eval_metric", "base_score"),
    *("num_class", "tweedie_variance_power", "quantile_alpha", "huber_slope", "seed_per_iteration", "n_jobs"),
)
"""What a misspelt name may have been meant to be."""


def unused_params(booster: xgboost.Booster) -> tuple[list[str], tuple[str, ...]]:
    """The names, and those that are usual. XGBoost says it itself when it applies parameters, which happens here.

    That depends on the others: `rate_drop` is used with booster='dart' only. Afterwards it is told no more.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        booster.save_config()
    unused: list[str] = []
    for each in told:
        found = _UNUSED.search(str(each.message))
        if found is None:
            _tell_again(each)
        else:
            unused += re.findall(r'"([^"]*)"', found[1])
    booster.set_param("validate_parameters", "0")
    return unused, _OFTEN


def _tell_again(message: Any) -> None:
    warnings.warn_explicit(message.message, message.category, message.filename, message.lineno)
