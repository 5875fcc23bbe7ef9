"""Which of Optuna's samplers to use, and how its state can be had again.

A sampler that is made anew for each suggestion, seeded by (seed, number of the suggestion),
has no state of its own. What is left is in the study, and there are two kinds:

- TPE, random search and the Gaussian process look at nothing but the parameters and values
  of earlier trials. Adding those to a study is enough to continue (`reads_trials_only`).
- CMA-ES, the genetic algorithms and QMC also keep notes in the study when they are asked:
  the state of the optimiser, the generation of each trial, the place in the sequence. They
  are continued by asking again, with the parameters fixed to what they were; their notes
  come out the same, because the seeds are the same. Brute force has to be told of each
  trial to notice that it has seen the whole space.

QMC gets the same seed for each suggestion, because the seed is what makes its points one
sequence. The Gaussian process loses the warm start of its fit.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

SamplerFactory = Callable[[int, int], "BaseSampler"]
"""(seed, number of the suggestion) -> the sampler for it."""

_CLASSES = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "nsga2": "NSGAIISampler",
    "nsga3": "NSGAIIISampler",
    "qmc": "QMCSampler",
    "brute_force": "BruteForceSampler",
}
_SETTINGS: dict[str, dict[str, Any]] = {
    # Without constant_liar, trials that start before others have finished get nearly the same
    # parameters. Optuna advises it for parallel trials and made it the default in version 5.
    "tpe": {"constant_liar": True},
    "gp": {"warn_independent_sampling": False},
    "cmaes": {"warn_independent_sampling": False},
    # Unscrambled, the sequence begins in a corner of the space and ignores the seed.
    "qmc": {"scramble": True, "warn_independent_sampling": False},
}
"""Optuna warns of each parameter that a sampler leaves to chance, for each sampler anew: here for each trial."""
_NEEDS = {"gp": ("torch", "scipy"), "cmaes": ("cmaes",), "qmc": ("scipy",)}


def sampler_factory(sampler: Any) -> SamplerFactory:
    """`sampler` as the user gave it: None, a name, a class or function that takes seed=, or a sampler."""
    from optuna.samplers import BaseSampler, GridSampler

    if isinstance(sampler, GridSampler) or sampler is GridSampler:
        raise ConfigError(
            "sampler is a GridSampler: write tune.grid_search([...]) in the param_space and leave search_alg out."
        )
    if isinstance(sampler, BaseSampler):
        return lambda seed, number: sampler
    if sampler is None or isinstance(sampler, str):
        return _by_name("tpe" if sampler is None else sampler.lower())
    if callable(sampler):
        return lambda seed, number: _made(sampler, seed=derived_seed(seed, number))
    raise ConfigError(
        f"sampler is {sampler!r}: give a name ({', '.join(_CLASSES)}), a sampler of optuna.samplers, its class, "
        "or a function that takes seed= and returns one."
    )


def _by_name(name: str) -> SamplerFactory:
    import optuna

    if name not in _CLASSES:
        raise ConfigError(
            f"There is no sampler {name!r}; there are: {', '.join(_CLASSES)}. (gp, a Gaussian process, is what is "
            "usually called Bayesian optimisation.)"
        )
    missing = [module for module in _NEEDS.get(name, ()) if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(f'OptunaSearch(sampler="{name}") needs {missing[0]}: pip install {" ".join(missing)}')
    sampler_class = getattr(optuna.samplers, _CLASSES[name])
    settings = _SETTINGS.get(name, {})
    if name == "qmc":
        return lambda seed, number: _made(sampler_class, seed=derived_seed(seed, 0), **settings)
    return lambda seed, number: _made(sampler_class, seed=derived_seed(seed, number), **settings)


def _made(factory: Callable[..., BaseSampler], **arguments: Any) -> BaseSampler:
    import optuna

    with warnings.catch_warnings():
        # Samplers are made for each suggestion; that one is experimental need not be said each time.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return factory(**arguments)


def reads_trials_only(sampler: BaseSampler) -> bool:
    """Whether a study with the same trials is all this sampler needs to go on (see above)."""
    from optuna.samplers import GPSampler, RandomSampler, TPESampler

    # Exactly these: a subclass may keep notes. Constraints are noted when a trial is told.
    return type(sampler) in (GPSampler, RandomSampler, TPESampler) and not getattr(sampler, "_constraints_func", None)


def derived_seed(seed: int, number: int) -> int:
    """A seed for one suggestion, below 2**32 as numpy's generators want it."""
    import numpy as np

    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
