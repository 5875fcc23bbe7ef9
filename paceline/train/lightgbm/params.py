"""LightGBM's parameters: their many names, and those that are the trainer's own business."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from paceline.air.checks import whole_number
from paceline.air.errors import ConfigError
from paceline.train.lightgbm.backend import get_network_params

ALIASES = {
    "bagging_fraction": ("sub_row", "subsample", "bagging"),
    "bagging_freq": ("subsample_freq",),
    "boosting": ("boosting_type", "boost"),
    "categorical_feature": ("cat_feature", "categorical_column", "cat_column", "categorical_features"),
    "early_stopping_round": ("early_stopping_rounds", "early_stopping", "n_iter_no_change"),
    "extra_trees": ("extra_tree",),
    "feature_fraction": ("sub_feature", "colsample_bytree"),
    "feature_fraction_bynode": ("sub_feature_bynode", "colsample_bynode"),
    "data_sample_strategy": (),
    "metric": ("metrics", "metric_types"),
    "min_gain_to_split": ("min_split_gain",),
    "neg_bagging_fraction": ("neg_sub_row", "neg_subsample", "neg_bagging"),
    "num_iterations": (
        "num_iteration",
        "n_iter",
        "num_tree",
        "num_trees",
        "num_round",
        "num_rounds",
        "nrounds",
        "num_boost_round",
        "n_estimators",
        "max_iter",
    ),
    "num_threads": ("num_thread", "nthread", "nthreads", "n_jobs"),
    "objective": ("objective_type", "app", "application", "loss"),
    "pos_bagging_fraction": ("pos_sub_row", "pos_subsample", "pos_bagging"),
    "tree_learner": ("tree", "tree_type", "tree_learner_type"),
    "verbosity": ("verbose",),
    "bin_construct_sample_cnt": ("subsample_for_bin",),
}
"""The other names of parameters that are looked at here; LightGBM knows those of all others."""

GROUP_KEYWORDS = ("group", "query", "qid")
COLUMN_KEYWORDS = ("weight", *GROUP_KEYWORDS, "init_score", "position")
"""Entries of dmatrix_params that name a column."""

QUANTILE_OBJECTIVES = frozenset(
    [
        *("regression_l1", "l1", "mean_absolute_error", "mae", "quantile"),
        *("mape", "mean_absolute_percentage_error"),
    ]
)
"""Objectives whose leaves are medians or other quantiles, under all their names."""

NETWORK = {
    "num_machines": ("num_machine",),
    "machines": ("workers", "nodes"),
    "machine_list_filename": ("machine_list_file", "machine_list", "mlist"),
    "local_listen_port": ("local_port", "port"),
    "time_out": (),
    "pre_partition": ("is_pre_partition",),
}
"""Parameters of LightGBM's network, which the trainer sets: their other names."""
COLUMNS = {
    "label_column": ("label",),
    "weight_column": ("weight",),
    "group_column": ("group", "group_id", "query_column", "query", "query_id"),
    "ignore_column": ("ignore_feature", "blacklist"),
}
"""Parameters that name columns, for which the trainer has arguments: their other names."""
_ONE_WORKER_ONLY: Mapping[str, tuple[tuple[str, ...], str]] = {
    "linear_tree": (("linear_trees",), "each worker would train a model of its own rows alone"),
    "interaction_constraints": ((), "LightGBM fails in the first round"),
    "forcedsplits_filename": (
        ("fs", "forced_splits_filename", "forced_splits_file", "forced_splits"),
        "LightGBM cannot force splits there",
    ),
    **dict.fromkeys(
        ("cegb_penalty_feature_coupled", "cegb_penalty_feature_lazy"),
        ((), "each worker counts by itself which features were paid for, and they can wait for each other for ever"),
    ),
}
"""Parameters that LightGBM's distributed learners do not heed: their other names, and what would happen."""
_LEAST_ROWS = ("min_data_in_leaf", "min_data_per_leaf", "min_data", "min_child_samples", "min_samples_leaf")
_MONOTONE_METHODS = ("monotone_constraints_method", "monotone_constraining_method", "mc_method")
_LEARNERS = {
    "data": ("data", "data_parallel"),
    "voting": ("voting", "voting_parallel"),
    "feature": ("feature", "feature_parallel"),
    "serial": ("serial",),
}


def value_of(params: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A parameter under whichever of its names it was given; its first name wins."""
    return next((params[each] for each in (name, *ALIASES[name]) if each in params), default)


def without(params: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The parameters without these, whatever they are called."""
    left_out = {each for name in names for each in (name, *ALIASES[name])}
    return {name: value for name, value in params.items() if name not in left_out}


def rounds_of(params: Any, num_boost_round: Any) -> Any:
    """The number of rounds, which may be among the parameters too; two that differ are refused."""
    if not isinstance(params, Mapping):
        return num_boost_round
    given = {name: params[name] for name in ("num_iterations", *ALIASES["num_iterations"]) if name in params}
    values = list(given.values())
    if values and (num_boost_round not in (None, values[0]) or any(value != values[0] for value in values)):
        said = ", ".join(f"params[{name!r}] is {value!r}" for name, value in given.items())
        beside = "" if num_boost_round is None else f", num_boost_round is {num_boost_round!r}"
        raise ConfigError(f"How many rounds? {said}{beside}. Give the number once.")
    return values[0] if values else num_boost_round


def check_params(params: Mapping[str, Any], num_workers: int | None) -> None:
    """Refuse what the trainer decides itself, and learners that do not fit to rows that are dealt to workers."""
    for name, others in NETWORK.items():
        for each in (name, *others):
            if each in params:
                raise ConfigError(
                    f"params[{each!r}]: the workers are connected by the trainer. Leave it out; "
                    "ScalingConfig(num_workers=...) says how many there are."
                )
    for name, others in COLUMNS.items():
        for each in (name, *others):
            if each in params:
                raise ConfigError(
                    f"params[{each!r}] is for files that LightGBM reads itself. Use label_column= of the trainer, and "
                    "dmatrix_params={'train': {'weight': ..., 'group': ..., 'ignore': [...]}} for other columns."
                )
    learner = value_of(params, "tree_learner")
    kind = next((kind for kind, names in _LEARNERS.items() if learner in names), None)
    if learner is not None and kind is None:
        raise ConfigError(f"params['tree_learner'] is {learner!r}: choose 'data' or 'voting', or leave it out.")
    if kind in ("serial", "feature") and (num_workers or 1) > 1:
        raise ConfigError(
            f"params['tree_learner'] is {learner!r}, which does not work where each of {num_workers} workers has its "
            "part of the rows: choose 'data' (the default) or 'voting'."
        )
    if (num_workers or 1) > 1:
        _check_distributable(params)
    if "num_threads" in params:
        whole_number(params["num_threads"], "params['num_threads']", least=0)


def _check_distributable(params: Mapping[str, Any]) -> None:
    """Refuse what several workers would train wrongly or not at all: LightGBM tells at most in its log."""
    for name, (others, consequence) in _ONE_WORKER_ONLY.items():
        for each in (name, *others):
            if params.get(each):
                raise ConfigError(
                    f"params[{each!r}] works on one worker only: with several, {consequence}. Leave it out, or use "
                    "ScalingConfig(num_workers=1)."
                )
    for name in _LEAST_ROWS:
        if params.get(name, 1) == 0:
            raise ConfigError(
                f"params[{name!r}] is 0: several workers estimate how many rows a leaf has, and LightGBM fails at a "
                "leaf that seems to have none. Use 1."
            )
    for name in _MONOTONE_METHODS:
        if params.get(name, "basic") != "basic":
            raise ConfigError(
                f"params[{name!r}] is {params[name]!r}, which works on one worker only: several use 'basic'. Leave it "
                "out, or use ScalingConfig(num_workers=1)."
            )


def unknown_names(params: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Parameters that LightGBM does not have, which it passes over in silence; and the names that it knows."""
    from lightgbm.basic import _ConfigAliases

    table = _ConfigAliases._get_all_param_aliases()
    known = sorted({*table, *(other for others in table.values() for other in others)})
    return [name for name in params if name not in known], known


def for_worker(params: Mapping[str, Any]) -> dict[str, Any]:
    """What LightGBM is told in a worker: the user's word, the workers, and quiet unless asked to speak."""
    told = without(params, "num_iterations")
    if value_of(told, "verbosity") is None:
        told["verbosity"] = -1
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if value_of(told, "num_threads") is None and threads.isdecimal():
        told["num_threads"] = int(threads)  # its CPUs: LightGBM would take all of the machine's
    learner = value_of(told, "tree_learner")
    network = get_network_params()
    if network and learner is not None:
        told = without(told, "tree_learner")
        network["tree_learner"] = learner
    if network:
        told["feature_pre_filter"] = False  # it would go by the rows that are there, which are not all
    return {**told, **network}
