"""From the arguments of a Tuner to the setup of a search, and from its description back to them."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from paceline.air.config import DEFAULT_MAX_LOG_BYTES, CheckpointConfig, FailureConfig, RunConfig
from paceline.air.constants import DEFAULT_METRIC
from paceline.air.errors import ConfigError, RestoreError
from paceline.air.secrets import masked, secret_paths
from paceline.air.settings import as_json
from paceline.tune.by_name import create_scheduler, create_searcher
from paceline.tune.experiment.place import ExperimentPlace
from paceline.tune.experiment.plugins import described, rebuilt
from paceline.tune.experiment.records import Facts
from paceline.tune.experiment.setup import SearchSetup
from paceline.tune.schedulers.trial_scheduler import FIFOScheduler, TrialScheduler
from paceline.tune.search.basic_variant import BasicVariantGenerator
from paceline.tune.search.domains import seed_of_program
from paceline.tune.search.paths import find, path_text, reject_secret_options
from paceline.tune.search.searcher import Metric, Mode, Searcher, completion_call, introduce
from paceline.tune.search.space import describe, from_description
from paceline.tune.trainable.kinds import TrainableKind
from paceline.tune.tune_config import TuneConfig

_PLAIN_SETTINGS = ("num_samples", "metric", "mode", "max_concurrent_trials", "time_budget_s", "chdir_to_trial_dir")


_USED = "_has_searched"


def make_setup(
    kind: TrainableKind,
    space: Mapping[str, Any],
    tune: TuneConfig,
    run_config: RunConfig,
    seed: int | None = None,
) -> SearchSetup:
    """A setup in which everything fits together, or an error that says what does not."""
    kind.check_space(space)
    kind.check_run_config(run_config)
    if run_config.stop is None and tune.scheduler is None and tune.time_budget_s is None:
        kind.check_without_stop()
    seed = seed_of_program() if seed is None else seed
    searcher = _searcher(tune.search_alg)
    scheduler = _scheduler(tune.scheduler)
    metric, mode = _goal(tune, searcher, scheduler)
    if not introduce(searcher, metric, mode, dict(space), num_samples=tune.num_samples):
        if (metric, mode) in ((None, None), (searcher.metric, searcher.mode)):
            raise ConfigError(
                f"{type(searcher).__name__} has a space of its own, and param_space is one, too. Give the search space "
                "in one place; constants may stay in param_space."
            )
        raise ConfigError(
            f"search_alg was made for metric={searcher.metric!r}, mode={searcher.mode!r}, and TuneConfig says "
            f"metric={metric!r}, mode={mode!r}. Say it in one place."
        )
    if metric is None and searcher.metric is not None:
        metric, mode = searcher.metric, searcher.mode
    one = (metric, mode) if isinstance(metric, str) and isinstance(mode, str | None) else (None, None)
    if isinstance(metric, list) and scheduler.needs_metric and scheduler.metric is None:
        name = type(scheduler).__name__
        raise ConfigError(
            f"{name} compares trials by one metric, and the search is for {len(metric)}: say which one, as "
            f"{name}(metric={metric[0]!r}, mode=...)."
        )
    if not scheduler.set_search_properties(*one):
        raise ConfigError(
            f"scheduler was made for metric={scheduler.metric!r}, mode={scheduler.mode!r}, and the search is for "
            f"metric={metric!r}, mode={mode!r}. Say it in one place."
        )
    if metric is None and scheduler.metric is not None:
        metric, mode = scheduler.metric, scheduler.mode
    kind.check_mutations(scheduler.changed_parameters, space)
    reject_secret_options(scheduler.changed_parameters)
    if scheduler.checkpoint_every() is not None:
        kind.check_can_save(type(scheduler).__name__)
    searcher.set_seed(seed)
    scheduler.set_seed(seed)
    tune = dataclasses.replace(tune, metric=metric, mode=mode, reuse_actors=None)
    return SearchSetup(kind, space, find(space), tune, run_config, searcher, scheduler, seed)


def _goal(tune: TuneConfig, searcher: Searcher, scheduler: TrialScheduler) -> tuple[Metric, Mode]:
    """Metric and mode of TuneConfig. Where somebody compares trials, and was given a mode only, the metric is the
    number that trials report without a name."""
    mode = tune.mode or searcher.mode or scheduler.mode
    compares = scheduler.needs_metric or searcher.needs_metric
    if mode is None or not compares or tune.metric or searcher.metric or scheduler.metric:
        return tune.metric, tune.mode
    return DEFAULT_METRIC, mode


def _searcher(given: Searcher | str | None) -> Searcher:
    searcher = create_searcher(given) if isinstance(given, str) else given
    if searcher is None:
        return BasicVariantGenerator()
    if not isinstance(searcher, Searcher):
        raise ConfigError(f"search_alg must be a Searcher or the name of one, not {searcher!r}.")
    if getattr(searcher, _USED, False):
        raise ConfigError(
            f"This {type(searcher).__name__} has searched already and knows another experiment's trials: make a new "
            "one. To go on with the earlier experiment use Tuner.restore()."
        )
    completion_call(searcher)  # rejects a method that could not be called
    return searcher


def mark_as_used(setup: SearchSetup) -> None:
    """The searcher knows an experiment from now on."""
    vars(setup.searcher)[_USED] = True


def _scheduler(given: TrialScheduler | str | None) -> TrialScheduler:
    scheduler = create_scheduler(given) if isinstance(given, str) else given
    if scheduler is None:
        return FIFOScheduler()
    if not isinstance(scheduler, TrialScheduler):
        raise ConfigError(f"scheduler must be a TrialScheduler or the name of one, not {scheduler!r}.")
    return copy.deepcopy(scheduler)  # what it learns in one experiment must not count in the next


def facts_of(setup: SearchSetup, place: ExperimentPlace) -> dict[str, Any]:
    """What a restore needs to know, as plain data."""
    config = setup.run_config
    return {
        "id": place.experiment_id,
        "name": place.name,
        "trainable": setup.kind.name,
        "seed": setup.seed,
        "space": _written(setup.space),
        "secrets": [path_text(path) for path in secret_paths(setup.space)],
        "searcher": described(setup.searcher),
        "scheduler": described(setup.scheduler),
        **{name: getattr(setup.tune, name) for name in _PLAIN_SETTINGS},
        "run": {
            "checkpoints": dataclasses.asdict(config.checkpoint_config),
            "failures": dataclasses.asdict(config.failure_config),
            "stop": as_json(config.stop) if isinstance(config.stop, Mapping) else None,
            "verbose": config.verbose,
            "max_log_bytes": config.max_log_bytes,
            "log_to_file": config.log_to_file,
            "had_stop": config.stop is not None,
            "had_callbacks": bool(config.callbacks),
        },
    }


def restored_setup(
    facts: Facts,
    kind: TrainableKind,
    space: Mapping[str, Any] | None,
    tune: TuneConfig | None,
    run_config: RunConfig,
    num_samples: int | None,
) -> SearchSetup:
    """The setup of an earlier search; what is given now goes before what was written down."""
    if space is None:
        if facts.space is None:
            raise RestoreError(
                "The experiment's param_space holds functions or objects, which are never written down: pass "
                "Tuner.restore(..., param_space=...) again."
            )
        if facts.secrets:
            raise RestoreError(
                f"The experiment's secrets are not stored, and param_space has some at {', '.join(facts.secrets)}: "
                "pass Tuner.restore(..., param_space=...) again."
            )
        space = from_description(facts.space)
    elif facts.space is not None and _written(space) != _written(from_description(facts.space)):
        raise RestoreError(
            "param_space differs from the experiment's, and a search cannot continue in another space: pass the same "
            "one again (without secrets it may be left out), or start a new experiment with another name."
        )
    settings = {name: getattr(facts, name) for name in _PLAIN_SETTINGS}
    if tune is not None:
        given = {field.name: getattr(tune, field.name) for field in dataclasses.fields(tune)}
        defaults = TuneConfig()
        settings.update({name: value for name, value in given.items() if value != getattr(defaults, name)})
        for name, searched in (("metric", facts.metric), ("mode", facts.mode)):
            if searched is not None and settings[name] != searched:
                raise RestoreError(
                    f"The experiment searched with {name}={searched!r}, and TuneConfig says {settings[name]!r}: "
                    "trials cannot be compared by both. Ask the results instead: get_best_result(metric, mode)."
                )
    if num_samples is not None:
        settings["num_samples"] = num_samples
    if settings.get("search_alg") is None:
        settings["search_alg"] = rebuilt(Searcher, facts.searcher, "search_alg")
    if settings.get("scheduler") is None:
        settings["scheduler"] = rebuilt(TrialScheduler, facts.scheduler, "scheduler")
    return make_setup(kind, space, TuneConfig(**settings), run_config, facts.seed)


def _written(space: Mapping[str, Any]) -> Any:
    """The space as the journal has it: two that differ in secrets only are equal."""
    return json.loads(json.dumps(describe(masked(space))))


def restored_run_config(facts: Facts, given: RunConfig | None, filesystem: Any = None) -> tuple[RunConfig, list[str]]:
    """The settings of the earlier experiment unless they are given now, and what could not be brought back."""
    if given is not None:
        return given, []
    saved = facts.run
    config = RunConfig(
        storage_filesystem=filesystem,
        checkpoint_config=CheckpointConfig(**saved["checkpoints"]),
        failure_config=FailureConfig(**saved["failures"]),
        stop=saved["stop"],
        verbose=saved["verbose"],
        max_log_bytes=saved.get("max_log_bytes", DEFAULT_MAX_LOG_BYTES),
        log_to_file=saved.get("log_to_file", False),
    )
    config.name = facts.name  # earlier versions took names that are rejected now
    lost = ["callbacks"] if saved["had_callbacks"] else []
    if saved["had_stop"] and saved["stop"] is None:
        lost.append("a stop criterion")
    if not lost:
        return config, []
    return config, [
        f"The experiment had {' and '.join(lost)}, which restore() cannot bring back: pass run_config=RunConfig(...)."
    ]
