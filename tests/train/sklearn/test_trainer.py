"""SklearnTrainer as a user meets it; scores are compared with what scikit-learn says by itself."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import f1_score, make_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from paceline import data
from paceline.air import FailureConfig, RunConfig, ScalingConfig
from paceline.air.errors import RestoreError, TrainingFailedError
from paceline.data import preprocessors
from paceline.testing.invariants import check_run
from paceline.train.sklearn import SklearnCheckpoint, SklearnTrainer

QUIET = RunConfig(verbose=0, engine="inline")
IN_A_WORKER = RunConfig(verbose=0)
TUMOURS = load_breast_cancer(as_frame=True).frame
FEATURES, LABELS = TUMOURS.drop(columns="target"), TUMOURS["target"]


def tumours() -> dict[str, data.Dataset]:
    return {"train": data.from_pandas(TUMOURS.iloc[:400]), "valid": data.from_pandas(TUMOURS.iloc[400:])}


def fitted(result: Any) -> Any:
    assert isinstance(result.checkpoint, SklearnCheckpoint)
    return result.checkpoint.get_estimator()


def test_a_forest_with_scores_and_cross_validation_equals_that_of_scikit_learn() -> None:
    forest = RandomForestClassifier(n_estimators=20, random_state=0)
    trainer = SklearnTrainer(
        estimator=forest,
        label_column="target",
        datasets=tumours(),
        params={"max_depth": 4},
        scoring=["accuracy", "roc_auc"],
        cv=3,
        return_train_score_cv=True,
        run_config=IN_A_WORKER,
    )
    result = trainer.fit()
    check_run(result.path, result=result, iterations=1, attempts=1)

    alone = RandomForestClassifier(n_estimators=20, max_depth=4, random_state=0)
    folds = cross_validate(
        alone, FEATURES[:400], LABELS[:400], scoring=["accuracy", "roc_auc"], cv=3, return_train_score=True
    )
    alone.fit(FEATURES[:400], LABELS[:400])
    assert set(result.metrics["valid"]) == {"test_accuracy", "test_roc_auc", "score_time"}
    assert result.metrics["valid"]["test_accuracy"] == alone.score(FEATURES[400:], LABELS[400:])
    assert result.metrics["fit_time"] > 0
    found = result.metrics["cv"]
    for name in ("test_accuracy", "test_roc_auc", "train_accuracy", "train_roc_auc"):
        assert found[name] == folds[name].tolist()
        assert found[f"{name}_mean"] == pytest.approx(folds[name].mean())
        assert found[f"{name}_std"] == pytest.approx(folds[name].std())
    assert len(found["fit_time"]) == len(found["score_time"]) == 3
    assert {"fit_time_mean", "fit_time_std", "score_time_mean", "score_time_std"} <= set(found)
    assert "train" not in result.metrics
    np.testing.assert_array_equal(fitted(result).predict_proba(FEATURES), alone.predict_proba(FEATURES))
    assert not hasattr(forest, "estimators_")  # the user's own object is not touched
    assert forest.max_depth is None


def test_one_scorer_is_called_score() -> None:
    result = SklearnTrainer(
        estimator=LinearRegression(),
        label_column="target",
        datasets={name: data.from_pandas(load_diabetes(as_frame=True).frame) for name in ("train", "again")},
        cv=KFold(4, shuffle=True, random_state=0),
        run_config=QUIET,
    ).fit()
    table = load_diabetes(as_frame=True).frame
    features, labels = table.drop(columns="target"), table["target"]
    folds = cross_validate(LinearRegression(), features, labels, cv=KFold(4, shuffle=True, random_state=0))
    assert result.metrics["cv"]["test_score"] == pytest.approx(folds["test_score"].tolist())
    assert set(result.metrics["again"]) == {"test_score", "score_time"}
    assert result.metrics["again"]["test_score"] == pytest.approx(
        LinearRegression().fit(features, labels).score(features, labels)
    )


def share_of_ones(estimator: Any, features: Any, labels: Any) -> float:
    return float(np.mean(estimator.predict(features)))


@pytest.mark.parametrize(
    ("scoring", "names"),
    [
        ("f1", {"test_score"}),
        (share_of_ones, {"test_score"}),
        ({"f": make_scorer(f1_score), "ones": share_of_ones}, {"test_f", "test_ones"}),
        (("accuracy",), {"test_accuracy"}),
    ],
)
def test_forms_of_scoring(scoring: Any, names: set[str]) -> None:
    trainer = SklearnTrainer(
        estimator=make_pipeline(StandardScaler(), LogisticRegression()),
        label_column="target",
        datasets=tumours(),
        scoring=scoring,
        run_config=QUIET,
    )
    scores = trainer.fit().metrics["valid"]
    assert set(scores) == {*names, "score_time"}
    assert all(0 < scores[name] <= 1 for name in names)


def test_texts_categories_missing_values_and_other_orders_of_columns() -> None:
    rows = pd.DataFrame(
        {
            "size": [1.0, 2.0, None, 8.0, 9.0, 7.0] * 10,
            "colour": ["red", "red", "blue", "blue", "blue", "red"] * 10,
            "kind": pd.Categorical(["a", "b", "a", "b", "a", "b"] * 10),
            "label": ["small", "small", "small", "large", "large", "large"] * 10,
        }
    )
    valid = rows[["label", "kind", "size", "colour"]].assign(unused=1)
    encoded = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["colour", "kind"]), remainder="passthrough"),
        HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=2),
    )
    for estimator in (encoded, HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=2)):
        columns = list(rows.columns) if estimator is encoded else ["size", "kind", "label"]
        result = SklearnTrainer(
            estimator=estimator,
            label_column="label",
            datasets={"train": data.from_pandas(rows[columns]), "valid": data.from_pandas(valid)},
            run_config=QUIET,
        ).fit()
        assert result.metrics["valid"]["test_score"] == 1.0
        model = fitted(result)
        assert list(model.feature_names_in_) == columns[:-1]
        assert list(model.classes_) == ["large", "small"]


def test_a_preprocessor_is_fitted_applied_and_kept() -> None:
    preprocessor = preprocessors.Chain(
        preprocessors.StandardScaler(["mean radius"]),
        preprocessors.Concatenator("inputs", include=["mean radius", "mean texture"]),
    )
    rows = {
        name: dataset.select_columns(["mean radius", "mean texture", "target"]) for name, dataset in tumours().items()
    }
    result = SklearnTrainer(
        estimator=LogisticRegression(),
        label_column="target",
        datasets=rows,
        preprocessor=preprocessor,
        run_config=QUIET,
    ).fit()
    assert result.metrics["valid"]["test_score"] > 0.8
    assert list(fitted(result).feature_names_in_) == ["inputs_0", "inputs_1"]  # one column per element
    assert result.checkpoint is not None
    kept = result.checkpoint.get_preprocessor()
    assert kept.preprocessors[0].stats_["mean(mean radius)"] == pytest.approx(FEATURES["mean radius"][:400].mean())


def test_learning_without_labels() -> None:
    table = load_iris(as_frame=True).data
    result = SklearnTrainer(
        estimator=KMeans(3, random_state=0, n_init=3),
        datasets={"train": data.from_pandas(table), "other": data.from_pandas(table[:50])},
        cv=2,
        run_config=QUIET,
    ).fit()
    alone = KMeans(3, random_state=0, n_init=3).fit(table)
    assert result.metrics["other"]["test_score"] == pytest.approx(alone.score(table[:50]))
    assert len(result.metrics["cv"]["test_score"]) == 2
    np.testing.assert_array_equal(fitted(result).predict(table), alone.labels_)


def test_weights_and_groups_are_columns() -> None:
    table = TUMOURS.assign(weight=np.linspace(0.1, 3, len(TUMOURS)), patient=np.arange(len(TUMOURS)) % 7)
    weights, patients = table["weight"].to_numpy(), table["patient"].to_numpy()
    result = SklearnTrainer(
        estimator=make_pipeline(StandardScaler(), Ridge()),
        label_column="target",
        datasets={"train": data.from_pandas(table), "valid": data.from_pandas(table)},
        cv=GroupKFold(3),
        ridge__sample_weight="weight",
        groups="patient",
        run_config=QUIET,
    ).fit()
    alone = make_pipeline(StandardScaler(), Ridge())
    folds = cross_validate(
        alone, FEATURES, LABELS, cv=GroupKFold(3), groups=patients, params={"ridge__sample_weight": weights}
    )
    alone.fit(FEATURES, LABELS, ridge__sample_weight=weights)
    assert result.metrics["cv"]["test_score"] == pytest.approx(folds["test_score"].tolist())
    np.testing.assert_allclose(fitted(result).predict(FEATURES), alone.predict(FEATURES))
    assert list(fitted(result).feature_names_in_) == list(FEATURES.columns)


def test_weights_as_an_array_and_a_search_that_splits_by_groups() -> None:
    table = TUMOURS.assign(patient=np.arange(len(TUMOURS)) % 7)
    weights = np.linspace(0.1, 3, len(table))
    search = GridSearchCV(Ridge(), {"alpha": [0.1, 1.0, 1000.0]}, cv=GroupKFold(3))
    result = SklearnTrainer(
        estimator=search,
        label_column="target",
        datasets={"train": data.from_pandas(table)},
        groups="patient",
        sample_weight=weights,
        run_config=QUIET,
    ).fit()
    alone = search.fit(FEATURES, LABELS, groups=table["patient"], sample_weight=weights)
    assert fitted(result).best_params_ == alone.best_params_
    np.testing.assert_allclose(
        fitted(result).cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"], rtol=1e-9
    )


def test_settings_of_scikit_learn_hold_in_the_worker() -> None:
    scaled = make_pipeline(StandardScaler(), NamesItsColumns())
    with sklearn.config_context(transform_output="pandas"):
        trainer = SklearnTrainer(estimator=scaled, label_column="target", datasets=tumours(), run_config=IN_A_WORKER)
    assert fitted(trainer.fit())[-1].columns_ == list(FEATURES.columns)


class NamesItsColumns(ClassifierMixin, BaseEstimator):
    """An estimator of the user's own."""

    def __init__(self, failures: str | None = None) -> None:
        self.failures = failures

    def fit(self, X: Any, y: Any) -> NamesItsColumns:
        if self.failures is not None:
            with open(self.failures, "a") as file:
                file.write("fit\n")
            if Path(self.failures).read_text().count("fit") == 1:
                os._exit(3)
        self.classes_ = np.unique(y)
        self.columns_ = list(getattr(X, "columns", ()))
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.classes_[0])


def test_a_worker_that_dies_is_tried_again(tmp_path: Path) -> None:
    result = SklearnTrainer(
        estimator=NamesItsColumns(failures=str(tmp_path / "fits")),
        label_column="target",
        datasets=tumours(),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures=1)),
    ).fit()
    check_run(result.path, result=result, iterations=1, attempts=2)
    assert (tmp_path / "fits").read_text() == "fit\nfit\n"


def test_what_was_reported_is_not_fitted_again(tmp_path: Path) -> None:
    class FailsAfterwards(SklearnTrainer):
        def training_loop(self) -> None:
            super().training_loop()
            if not (tmp_path / "failed").exists():
                (tmp_path / "failed").touch()
                raise OSError("after the report")

    result = FailsAfterwards(
        estimator=Ridge(),
        label_column="target",
        datasets=tumours(),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures=1)),
    ).fit()
    check_run(result.path, result=result, iterations=1, attempts=2)
    assert fitted(result).predict(FEATURES).shape == (569,)


def test_a_run_that_failed_is_restored_with_what_code_cannot_be_stored(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"estimator": NamesItsColumns(failures=str(tmp_path / "fits")), "datasets": tumours()}
    trainer = SklearnTrainer(**arguments, label_column="target", scoring="f1", cv=KFold(2), run_config=IN_A_WORKER)
    failed = trainer.fit(raise_on_error=False)
    assert failed.error is not None
    with pytest.raises(RestoreError, match="estimator=, datasets=, cv="):
        SklearnTrainer.restore(failed.path)
    with pytest.raises(RestoreError, match=r"datasets.*'train', 'valid'"):
        SklearnTrainer.restore(failed.path, **{**arguments, "datasets": {"train": tumours()["train"]}}, cv=KFold(2))
    restored = SklearnTrainer.restore(failed.path, **arguments, cv=KFold(2))
    assert (restored.label_column, restored.scoring) == ("target", "f1")
    result = restored.fit()
    assert result.path == failed.path
    assert len(result.metrics["cv"]["test_score"]) == 2
    # Its files were there before: nobody vouches for them.
    assert result.checkpoint is not None
    assert not pickle.loads(pickle.dumps(result.checkpoint)).made_here


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda: data.from_items([{"x": 1.0}]), r"label_column='y'.*'train'.*\bx\b"),
        (lambda: data.from_items([{"y": 1}]), r"\by\b.*features"),
        (lambda: data.from_items([{"x": 1.0, "y": 1}]).filter(lambda row: row["x"] > 5), "'train'.*rows"),
    ],
)
def test_rows_that_nothing_can_be_fitted_on(rows: Any, message: str) -> None:
    trainer = SklearnTrainer(estimator=Ridge(), label_column="y", datasets={"train": rows}, run_config=QUIET)
    with pytest.raises(TrainingFailedError, match=message):
        trainer.fit()


def test_a_dataset_to_score_that_lacks_a_column() -> None:
    rows = {"train": tumours()["train"], "valid": tumours()["valid"].drop_columns(["mean radius"])}
    with pytest.raises(TrainingFailedError, match=r"'valid'.*'mean radius'"):
        SklearnTrainer(estimator=Ridge(), label_column="target", datasets=rows, run_config=QUIET).fit()


def test_a_fold_that_fails_is_an_error() -> None:
    with pytest.raises(TrainingFailedError, match=r"at least (2|two) classes|number of classes"):
        SklearnTrainer(
            estimator=LogisticRegression(),
            label_column="y",
            datasets={"train": data.from_items([{"x": float(i), "y": int(i > 5)} for i in range(10)])},
            cv=[(range(5), range(5, 10))],
            run_config=QUIET,
        ).fit()


def test_nothing_of_it_needs_a_cpu_count() -> None:
    trainer = SklearnTrainer(
        estimator=Ridge(),
        label_column="target",
        datasets=tumours(),
        scaling_config=ScalingConfig(num_workers=1),
        run_config=QUIET,
    )
    before = dict(os.environ)
    assert trainer.fit().metrics["valid"]["test_score"] > 0.5
    assert dict(os.environ) == before
