"""Who gets the CPUs: one level of an estimator, or the folds of cross-validation."""

from __future__ import annotations

import os
from typing import Any

import pytest
import threadpoolctl
from sklearn.compose import make_column_transformer
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from paceline import data
from paceline.air import RunConfig, ScalingConfig
from paceline.train.sklearn import SklearnTrainer
from paceline.train.sklearn.cpus import cpu_budget, set_cpus, uses_cpus
from tests.train.sklearn.telling import Plain, TellsItsJobs, fitted_jobs, process

TABLE = [{"x": float(i), "y": i % 2} for i in range(60)]


def jobs(estimator: Any) -> dict[str, Any]:
    return {name: value for name, value in estimator.get_params().items() if name.endswith("n_jobs")}


def test_the_outermost_part_gets_all_and_what_is_inside_works_with_one() -> None:
    search = GridSearchCV(BaggingClassifier(RandomForestClassifier(n_jobs=-1)), {"n_estimators": [1]})
    set_cpus(search, 4)
    assert jobs(search) == {"n_jobs": 4, "estimator__n_jobs": None, "estimator__estimator__n_jobs": 1}


def test_steps_of_a_pipeline_follow_each_other_and_each_gets_all() -> None:
    steps = make_pipeline(make_column_transformer((StandardScaler(), ["x"])), RandomForestClassifier())
    set_cpus(steps, 4)
    assert jobs(steps) == {"columntransformer__n_jobs": None, "randomforestclassifier__n_jobs": 4}


def test_other_libraries_take_none_for_all_cpus() -> None:
    from xgboost import XGBClassifier

    voting = VotingClassifier([("trees", XGBClassifier()), ("near", KNeighborsClassifier())])
    set_cpus(voting, 4)
    assert jobs(voting) == {"n_jobs": 4, "trees__n_jobs": 1, "near__n_jobs": None}


@pytest.mark.parametrize(("chosen", "found"), [(None, 4), (-1, 4), (-2, 3), (2, 2), (1, 1), (16, 4)])
def test_a_number_that_the_user_chose_stays_within_the_budget(chosen: int | None, found: int) -> None:
    forest = RandomForestClassifier(n_jobs=chosen)
    set_cpus(forest, 4)
    assert forest.n_jobs == found


def test_who_chose_one_outside_lets_the_inside_have_them() -> None:
    search = GridSearchCV(RandomForestClassifier(), {}, n_jobs=1)
    set_cpus(search, 4)
    assert jobs(search) == {"n_jobs": 1, "estimator__n_jobs": 4}


def test_the_values_from_before() -> None:
    from xgboost import XGBClassifier

    search = GridSearchCV(XGBClassifier(), {}, n_jobs=-1)
    before = set_cpus(search, 4)
    assert before == {"n_jobs": -1, "estimator__n_jobs": None}
    assert jobs(search.set_params(**before)) == {"n_jobs": -1, "estimator__n_jobs": None}


def test_which_estimators_can_use_several() -> None:
    assert uses_cpus(make_pipeline(StandardScaler(), RandomForestClassifier()))
    assert not uses_cpus(make_pipeline(StandardScaler(), LogisticRegression()))  # has n_jobs, without an effect


def test_thread_pools_and_processes_keep_to_the_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    import joblib

    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with cpu_budget(1, str(tmp_path)):
        assert joblib.cpu_count() == 1
        assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {1}
        assert "OMP_NUM_THREADS" not in os.environ
        assert os.environ["JOBLIB_TEMP_FOLDER"] == str(tmp_path)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert not {"LOKY_MAX_CPU_COUNT", "JOBLIB_TEMP_FOLDER"} & set(os.environ)


def fit(estimator: Any, cpus: float | None = 2, *, engine: str = "inline", **arguments: Any) -> Any:
    resources = None if cpus is None else {"CPU": cpus}
    return SklearnTrainer(
        estimator=estimator,
        datasets={"train": data.from_items(TABLE)},
        label_column="y",
        scaling_config=ScalingConfig(trainer_resources=resources),
        run_config=RunConfig(verbose=0, engine=engine),
        **arguments,
    ).fit()


needs_two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")


@needs_two
def test_the_estimator_is_fitted_with_the_cpus_and_given_back_without() -> None:
    estimator = fit(TellsItsJobs()).checkpoint.get_estimator()
    assert (estimator.fitted_with_, estimator.n_jobs) == (2, None)
    assert fit(TellsItsJobs(n_jobs=-1), cpus=1).checkpoint.get_estimator().fitted_with_ == 1
    for untouched in (fit(TellsItsJobs(n_jobs=5), cpus=None), fit(TellsItsJobs(n_jobs=5), set_estimator_cpus=False)):
        assert untouched.checkpoint.get_estimator().fitted_with_ == 5


@needs_two
@pytest.mark.parametrize(
    ("estimator", "parallelize_cv", "in_processes", "each_has"),
    [
        (TellsItsJobs(), None, False, 2),  # it can use the CPUs itself
        (TellsItsJobs(), False, False, 2),
        pytest.param(TellsItsJobs(n_jobs=2), True, True, 1, marks=pytest.mark.slow),
        (Plain(), None, True, 0),
        (Plain(), False, False, 0),
    ],
)
def test_folds_or_estimators_in_parallel(
    estimator: Any, parallelize_cv: bool | None, in_processes: bool, each_has: int
) -> None:
    result = fit(
        estimator,
        engine="local" if in_processes else "inline",  # joblib keeps its processes as long as their parent lives
        cv=2,
        parallelize_cv=parallelize_cv,
        scoring={"jobs": fitted_jobs, "process": process},
    )
    folds = result.metrics["cv"]
    worker = result.checkpoint.get_estimator().pid_
    assert (worker not in folds["test_process"]) is in_processes
    assert folds["test_jobs"] == [each_has, each_has]
