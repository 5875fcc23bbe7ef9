"""The experiment behind a Tuner: many runs in one event loop. Names of the older API are loaded on first use."""

from __future__ import annotations

from paceline.air.lazy import lazy_imports

with lazy_imports(__name__):
    from paceline.compat.tune_experiment import Experiment as Experiment
    from paceline.run.spec import Trial as Trial
