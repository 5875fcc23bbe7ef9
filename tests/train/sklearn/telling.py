"""Estimators that tell with what, and where, they were fitted. Worker processes import them: nothing else is here."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin


class TellsItsJobs(ClassifierMixin, BaseEstimator):
    """Remembers what it was fitted with."""

    def __init__(self, n_jobs: int | None = None) -> None:
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any) -> TellsItsJobs:
        self.classes_ = np.unique(y)
        self.fitted_with_ = self.n_jobs
        self.pid_ = os.getpid()
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.classes_[0])


class Plain(TellsItsJobs):
    """One that has no parameter for CPUs."""

    def __init__(self) -> None:
        self.n_jobs = None


def fitted_jobs(estimator: Any, features: Any, labels: Any) -> float:
    return float(estimator.fitted_with_ or 0)


def process(estimator: Any, features: Any, labels: Any) -> float:
    return float(estimator.pid_)
