"""Training from recorded steps: which datasets and columns BC, MARWIL, CQL and IQL need, and how a config gets them.

Each row is one time step. RLlib reads such rows with Ray Data; paceline reads its own datasets in the worker instead.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import ConfigError, DataError, MissingDatasetError

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset
    from paceline.data.iterator import DataIterator

NEEDED_COLUMNS = {
    "BC": ("obs", "actions"),
    "CQL": ("obs", "actions", "rewards", "new_obs", "terminateds"),
    "IQL": ("obs", "actions", "rewards", "new_obs", "terminateds"),
    "MARWIL": ("obs", "actions", "rewards", "terminateds"),
}
"""By algorithm. BC and IQL are subclasses of MARWIL, so MARWIL comes last."""

OTHER_NAMES = {"next_obs": "new_obs", "dones": "terminateds"}
"""Names of columns that mean the same as one of RLlib's own."""

_numbers = itertools.count(1)


def offline_kind(algorithm_class: type) -> str | None:
    """Which of the offline algorithms the class is, or is derived from; None: it learns in an environment."""
    names = {base.__name__ for base in algorithm_class.__mro__}
    return next((kind for kind in NEEDED_COLUMNS if kind in names), None)


def check_dataset(datasets: Mapping[str, Any], algorithm_class: type, input_: Any = None) -> None:
    """Reject datasets that the algorithm cannot learn from, before any worker starts.

    `input_` is the config's own setting of that name: files that RLlib reads itself.
    """
    kind, name = offline_kind(algorithm_class), algorithm_class.__name__
    has_input = bool(input_) and input_ != "sampler"
    if kind is None:
        if datasets:
            raise ConfigError(
                f"{name} learns in an environment and cannot use datasets={{{', '.join(map(repr, datasets))}}}: leave "
                f"them out, or choose an algorithm that learns from recorded steps ({', '.join(NEEDED_COLUMNS)})."
            )
        return
    if others := [key for key in datasets if key != TRAIN_DATASET_KEY]:
        raise ConfigError(
            f"datasets: {name} uses only {TRAIN_DATASET_KEY!r}, not {', '.join(map(repr, others))}. To see how good "
            'the policy is, let it play: config={"env": ..., "evaluation_interval": 1}.'
        )
    if not datasets and not has_input:
        raise MissingDatasetError(
            f'{name} learns from recorded steps: pass datasets={{"train": ...}} with the columns '
            f"{', '.join(NEEDED_COLUMNS[kind])}, one row per time step."
        )
    if datasets and has_input:
        raise ConfigError(f'{name} has both datasets={{"train": ...}} and config["input_"]: leave one of them out.')
    for dataset in datasets.values():
        schema = dataset._known_schema() if hasattr(dataset, "_known_schema") else None
        if schema is not None:
            check_columns(schema.names, kind)


def check_columns(names: Iterable[str], kind: str, schema: Mapping[str, str] | None = None) -> dict[str, str]:
    """RLlib's name -> the dataset's name of each column. `schema` is what the config's input_read_schema says."""
    given = list(names)
    found = {name: name for name in given}
    for other, usual in OTHER_NAMES.items():
        if other in found and usual not in found:
            found[usual] = found.pop(other)
    for usual, name in (schema or {}).items():
        if name in given:
            found[usual] = name
    missing = [name for name in NEEDED_COLUMNS[kind] if name not in found]
    if missing:
        near = [match for name in missing for match in difflib.get_close_matches(name, given, n=1, cutoff=0.7)]
        example = near[0] if near else "my_" + missing[0]
        meant = next((name for name in missing if difflib.get_close_matches(name, [example], cutoff=0.7)), missing[0])
        raise DataError(
            f"{kind} needs the column(s) {', '.join(missing)}; the dataset has {', '.join(given) or 'none'}. "
            f"Rename columns with dataset.rename_columns({{{example!r}: {meant!r}}})."
        )
    if kind == "MARWIL" and not {"eps_id", "truncateds"} & found.keys():
        raise DataError(
            "MARWIL needs to know where episodes end: add a column eps_id (the same value in all rows of an episode) "
            "or truncateds to the dataset."
        )
    return found


def with_dataset(config: Any, dataset: Dataset | DataIterator) -> Any:
    """A copy of the AlgorithmConfig, whose `build_algo()` makes an algorithm that learns from the rows in this process.

    The dataset itself is not part of the config, which RLlib copies, sends to env runners and stores in checkpoints.
    """
    from paceline.data.dataset import Dataset
    from paceline.data.iterator import DataIterator
    from paceline.train.rl import rllib  # noqa: F401  # before anything of ray.rllib
    from paceline.train.rl.offline_data import SHARDS, RowsForLearner

    _check_settings(config)
    shard = DataIterator.over(dataset) if isinstance(dataset, Dataset) else dataset
    rows = shard.count()
    if not rows:
        raise DataError("The dataset to learn from has no rows.")
    check_columns(shard.schema().names, offline_kind(config.algo_class) or "BC", config.input_read_schema)
    made = _with_spaces(config.copy(copy_frozen=False)).env_runners(num_env_runners=0)  # they would only wait
    # RLlib means a whole epoch by None, and then refuses None where the learner is in the same process.
    updates = config.dataset_num_iters_per_learner or -(-rows // config.train_batch_size_per_learner)
    key = f"paceline dataset {next(_numbers)}"
    SHARDS[key] = shard
    return made.offline_data(input_=key, offline_data_class=RowsForLearner, dataset_num_iters_per_learner=updates)


def restore(algorithm: Any, folder: str) -> None:
    """Continue from a checkpoint. RLlib's own method fails for an algorithm that has no env runners to train with."""
    from ray.rllib.utils.checkpoints import Checkpointable

    if algorithm.env_runner_group is not None:
        algorithm.restore_from_path(folder)
        return
    Checkpointable.restore_from_path(algorithm, folder)
    if algorithm.eval_env_runner_group is not None:
        algorithm.eval_env_runner_group.sync_weights(
            from_worker_or_learner_group=algorithm.learner_group, inference_only=True
        )


def _check_settings(config: Any) -> None:
    if config.num_learners:
        raise ConfigError(
            f"num_learners={config.num_learners}: training from a dataset needs the learner in the worker process, "
            "num_learners=0."
        )
    if config.is_multi_agent:
        raise ConfigError("Training from a dataset works for one policy, not for a multi-agent config.")
    if config.env is None and offline_kind(config.algo_class) == "CQL":
        raise ConfigError(
            "CQL needs an environment even to learn from a dataset: RLlib makes one. Set env in the config."
        )
    for name in ("input_read_episodes", "input_read_sample_batches"):
        if getattr(config, name):
            raise ConfigError(f"{name}=True does not go with datasets=: their rows are single time steps.")
    if config.prelearner_class is not None:
        raise ConfigError(
            "prelearner_class is for data that RLlib reads itself. Change the rows with dataset.map_batches(), or the "
            "batches with a learner_connector."
        )


def _with_spaces(config: Any) -> Any:
    """RLlib asks an environment for the spaces only if it is going to evaluate in it."""
    if config.observation_space is not None and config.action_space is not None:
        return config
    if config.evaluation_interval or config.evaluation_num_env_runners:
        return config
    if config.env is None:
        raise ConfigError(
            "Without an environment the spaces are not known: set env in the config, or observation_space and "
            "action_space."
        )
    import gymnasium
    from ray.rllib.env.env_context import EnvContext
    from ray.tune.registry import ENV_CREATOR, _global_registry

    registry: Any = _global_registry
    context = EnvContext(config.env_config, worker_index=0)
    if not isinstance(config.env, str):
        env = config.env(context)
    elif registry.contains(ENV_CREATOR, config.env):
        env = registry.get(ENV_CREATOR, config.env)(context)
    else:
        env = gymnasium.make(config.env, **config.env_config)
    try:
        return config.environment(observation_space=env.observation_space, action_space=env.action_space)
    finally:
        env.close()
