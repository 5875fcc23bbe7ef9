"""To be imported by a process that forks workers: has LightGBM loaded without scikit-learn."""

from paceline.train.imports import import_without_sklearn

import_without_sklearn("lightgbm")
