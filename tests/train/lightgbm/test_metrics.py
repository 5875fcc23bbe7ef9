"""Metrics of parts against LightGBM's own of the whole, and LightGBM's own list of names."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import pytest
from lightgbm.basic import _ConfigAliases

from paceline.train.lightgbm import params as own_params
from paceline.train.lightgbm.metrics import approximate_metrics, combined, share_of, shares_of

ROWS, CUT, QUERY = 1000, 300, 20
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 4))
WEIGHT = RANDOM.uniform(0.2, 3, ROWS).astype(np.float32)
POSITIVE = np.exp(X[:, 0] * 0.3 + RANDOM.normal(size=ROWS) * 0.2)
LABELS = {
    "binary": (X[:, 0] + RANDOM.normal(size=ROWS) > 0).astype(float),
    "multiclass": RANDOM.integers(0, 3, ROWS).astype(float),
    "cross_entropy": RANDOM.uniform(0, 1, ROWS),
    "cross_entropy_lambda": RANDOM.uniform(0, 1, ROWS),
    "lambdarank": RANDOM.integers(0, 4, ROWS).astype(float),
}
CASES: list[tuple[str, list[str], dict[str, Any]]] = [
    ("regression", ["l1", "l2", "rmse", "quantile", "huber", "fair", "mape"], {}),
    ("poisson", ["poisson"], {}),
    ("gamma", ["gamma", "gamma_deviance"], {}),
    ("tweedie", ["tweedie"], {}),
    ("binary", ["binary_logloss", "binary_error"], {}),
    ("multiclass", ["multi_logloss", "multi_error"], {"num_class": 3, "multi_error_top_k": 2}),
    ("cross_entropy", ["cross_entropy", "kullback_leibler"], {}),
    ("cross_entropy_lambda", ["cross_entropy_lambda"], {}),
    ("lambdarank", ["ndcg", "map"], {"eval_at": [3]}),
]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("objective", "metrics", "extra"), CASES, ids=[case[0] for case in CASES])
def test_parts_give_the_metric_of_the_whole(
    objective: str, metrics: list[str], extra: dict[str, Any], weighted: bool
) -> None:
    params = {"objective": objective, "metric": metrics, "verbosity": -1, "num_leaves": 5, "num_threads": 1, **extra}
    assert not approximate_metrics(params, {})
    label = LABELS.get(objective, POSITIVE)

    def dataset(rows: slice, reference: Any = None) -> tuple[lightgbm.Dataset, Any]:
        count = rows.stop - rows.start
        weight = WEIGHT[rows] if weighted else None
        group = np.full(count // QUERY, QUERY, np.int32) if objective == "lambdarank" else None
        made = lightgbm.Dataset(X[rows], label[rows], weight=weight, group=group, reference=reference, params=params)
        return made, shares_of(count, weight, group)

    whole, _ = dataset(slice(0, ROWS))
    first, first_shares = dataset(slice(0, CUT), whole)
    second, second_shares = dataset(slice(CUT, ROWS), whole)
    history: dict[str, Any] = {}
    names = ["whole", "first", "second"]
    lightgbm.train(
        params,
        whole,
        3,
        valid_sets=[whole, first, second],
        valid_names=names,
        callbacks=[lightgbm.record_evaluation(history)],
    )
    assert len(history["whole"]) == len(metrics)
    for metric in history["whole"]:
        expected, one, other = (history[name][metric][-1] for name in names)
        parts = [(one, share_of(metric, first_shares)), (other, share_of(metric, second_shares))]
        assert combined(metric, parts) == pytest.approx(expected, rel=1e-6 if weighted else 1e-12)


def test_a_function_may_have_the_name_of_a_metric_of_queries() -> None:
    assert share_of("map@3", shares_of(10, None, None)) == 10
    assert share_of("map@3", shares_of(10, None, np.array([6, 4], np.int32))) == 2


def test_a_part_without_rows_has_no_say() -> None:
    assert combined("l2", [(4.0, 2.0), (float("nan"), 0.0)]) == 4.0
    assert np.isnan(combined("l2", [(4.0, 0.0), (5.0, 0.0)]))


@pytest.mark.parametrize(
    ("params", "keywords", "exact"),
    [
        ({}, {}, True),
        ({"metric": "binary_logloss, ndcg"}, {}, True),
        ({"metrics": ["mae", "MSE", "None"]}, {}, True),
        ({"metric": "auc"}, {}, False),
        ({"metric_types": {"l2", "average_precision"}}, {}, False),
        ({"metric": "r2"}, {}, False),
        ({"metric": "l2"}, {"feval": print}, False),
    ],
)
def test_which_metrics_are_exact(params: dict[str, Any], keywords: dict[str, Any], exact: bool) -> None:
    assert (approximate_metrics(params, keywords) == []) is exact


def test_names_of_parameters_are_those_of_the_library() -> None:
    for table in (own_params.ALIASES, own_params.NETWORK, own_params.COLUMNS):
        for name, others in table.items():
            assert _ConfigAliases.get(name) == {name, *others}, name
