"""RLlib's OfflineData, fed from a paceline dataset in the learner's own process.

RLlib's own class maps batches in actors of Ray Data, which wait forever where env runners leave them no CPUs.
Imported only where RLlib is in use already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.offline_data import OfflineData
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.torch_utils import convert_to_torch_tensor

from paceline.air.errors import ConfigError, DataError
from paceline.train.rl.offline import check_columns, offline_kind
from paceline.train.rl.offline_rows import Rows, Steps, episode_batches, row_batches

if TYPE_CHECKING:
    from paceline.data.iterator import DataIterator

SHARDS: dict[str, DataIterator] = {}
"""The datasets of this process, by the config's `input_`."""

MODULE = "default_policy"
PLAIN_PIECES = {
    "AddColumnsFromEpisodesToTrainBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "BatchIndividualItems",
    "NumpyToTensor",
}
"""Connector pieces that, for single steps, do no more than make tensors of columns."""
_sample_batch: Any = SampleBatch  # its constructor has no type hints
OWN = {"obs", "new_obs", "actions", "rewards", "terminateds", "truncateds"}
"""Columns that an episode has in any case."""
NOT_FOR_THE_LEARNER = {"eps_id", "t", "unroll_id", "agent_id", "agent_index", "module_id", "infos", "type"}


def forget_datasets() -> None:
    """Called when a run ends: the process may live on."""
    SHARDS.clear()


class RowsForLearner(OfflineData):  # type: ignore[misc]  # ray has no types here
    """What an offline algorithm asks for its next batch, or for an iterator over batches."""

    def __init__(self, config: Any) -> None:  # not the base class's, which starts Ray Data
        if config.input_ not in SHARDS:
            raise ConfigError(
                "This algorithm learned from a paceline dataset, which is not part of the checkpoint: use "
                "with_dataset(config, dataset), or load only its RLModule."
            )
        self.config = config
        self.iter_batches_kwargs: dict[str, Any] = {}
        self.learner_handles: Any = None  # RLlib sets these after it has made its learner
        self.spaces: Any = None
        self._shard = SHARDS[config.input_]
        self._kind = offline_kind(config.algo_class) or "BC"
        self._columns = check_columns(self._shard.schema().names, self._kind, config.input_read_schema)
        self._batches: Iterator[dict[str, Any]] | None = None

    def sample(
        self, num_samples: int, return_iterator: bool = False, num_shards: int = 0, module_state: Any = None
    ) -> Any:
        """The next batch, or a list with the iterator of the one learner."""
        if return_iterator or self._kind == "CQL":  # CQL hands even a single batch on as if it were iterators
            return [self]
        batch = next(self._endless(num_samples))
        return MultiAgentBatch({MODULE: _sample_batch(batch)}, env_steps=num_samples)

    def iter_torch_batches(self, *, batch_size: int, **_: Any) -> Iterator[dict[str, Any]]:
        """What the learner iterates over: it takes as many batches as an iteration has."""
        for batch in self._endless(batch_size):
            yield {f"{MODULE}/{name}": tensor for name, tensor in batch.items()}

    def _endless(self, size: int) -> Iterator[dict[str, Any]]:
        if self._batches is None:
            self._batches = self._make_batches(size)
        return self._batches

    def _make_batches(self, size: int) -> Iterator[dict[str, Any]]:
        learner = self.learner_handles[0]
        pieces = {type(piece).__name__ for piece in learner._learner_connector.connectors}
        if learner.module[MODULE].is_stateful():
            raise ConfigError("Training a recurrent module (use_lstm) from a dataset is not supported.")
        if "GeneralAdvantageEstimation" in pieces:  # advantages need the steps that followed
            for episodes in episode_batches(self._shard, self._columns, size, self.config.seed):
                yield self._by_connector([self._episode(steps) for steps in episodes])
        for rows in row_batches(self._shard, self._columns, size, self.config.seed):
            prepared = self._prepared(rows)
            if pieces <= PLAIN_PIECES:  # an episode object per row would take far longer than the update itself
                yield convert_to_torch_tensor(prepared, device=learner.device)
            else:
                yield self._by_connector(_single_steps(prepared))

    def _by_connector(self, episodes: list[Any]) -> dict[str, Any]:
        learner = self.learner_handles[0]
        batch = learner._learner_connector(
            rl_module=learner.module, batch={}, episodes=episodes, shared_data={}, metrics=learner.metrics
        )[MODULE]
        if "loss_mask" not in batch:
            return dict(batch)
        keep = batch["loss_mask"]  # the steps that were appended for the value after the last one
        return {name: column[keep] for name, column in batch.items()}

    def _episode(self, steps: Steps) -> Any:
        rows = self._prepared({**steps.rows, "new_obs": np.asarray(steps.last_obs)[None]})
        return _as_episode(rows, [*rows["obs"], rows["new_obs"][-1]], steps.terminated, steps.truncated)

    def _prepared(self, rows: Rows) -> Rows:
        """The columns for the learner, checked and with the types of the spaces."""
        env_spaces = self.spaces.get(INPUT_ENV_SINGLE_SPACES) or self.spaces[INPUT_ENV_SPACES]  # env runners have both
        observation_space, action_space = env_spaces
        made = {name: column for name, column in rows.items() if name not in NOT_FOR_THE_LEARNER}
        made = {name: column for name, column in made.items() if name in OWN or column.dtype.kind in "biuf"}
        for name in ("obs", "new_obs"):
            if name in made:
                made[name] = _fitting(made[name], observation_space, name)
        made["actions"] = _fitting(made["actions"], action_space, "actions")
        if self.config.normalize_actions and not self.config.actions_in_input_normalized:
            made["actions"] = _normalized(made["actions"], action_space)
        for name in ("terminateds", "truncateds"):
            made[name] = made[name].astype(bool) if name in made else np.zeros(len(made["obs"]), bool)
        made["rewards"] = _numbers(made["rewards"] if "rewards" in made else np.zeros(len(made["obs"])), "rewards")
        return made


def _fitting(column: Any, space: Any, name: str) -> Any:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        raise DataError(f"Column {name}: a {type(space).__name__} space does not fit a column of arrays or numbers.")
    if column.dtype == object or column.shape[1:] != space.shape:
        what = "values of different lengths" if column.dtype == object else f"values of shape {column.shape[1:]}"
        raise DataError(f"Column {name} has {what}; the environment's space has the shape {space.shape}.")
    column = _numbers(column, name, space.dtype)
    if isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start) + int(space.n)
        if len(column) and (column.min() < low or column.max() >= high):
            wrong = column.min() if column.min() < low else column.max()
            raise DataError(f"Column {name} has the value {wrong}; the space has only {low} to {high - 1}.")
    return column


def _numbers(column: Any, name: str, dtype: Any = np.float32) -> Any:
    if column.dtype == object or (column.dtype.kind == "f" and np.isnan(column).any()):
        raise DataError(f"Column {name} has values that are missing or are not numbers: filter those rows.")
    return column.astype(dtype, copy=False)


def _normalized(actions: Any, space: Any) -> Any:
    """Actions in the environment's units become what the policy puts out, which env runners stretch to the bounds."""
    if not isinstance(space, spaces.Box) or not space.is_bounded():
        return actions
    if ((actions < space.low - 1e-3) | (actions > space.high + 1e-3)).any():
        raise DataError(
            f"Column actions has values outside of the action space, {space}. If they are between -1 and 1 because a "
            "policy of RLlib put them out, set actions_in_input_normalized=True."
        )
    return ((actions - space.low) / (space.high - space.low) * 2 - 1).clip(-1, 1).astype(space.dtype)


def _single_steps(rows: Rows) -> list[Any]:
    after = rows["new_obs"] if "new_obs" in rows else rows["obs"]
    one = [{name: column[i : i + 1] for name, column in rows.items()} for i in range(len(rows["obs"]))]
    return [
        _as_episode(row, [row["obs"][0], after[i]], bool(row["terminateds"][0]), bool(row["truncateds"][0]))
        for i, row in enumerate(one)
    ]


def _as_episode(rows: Rows, observations: list[Any], terminated: bool, truncated: bool) -> Any:
    return SingleAgentEpisode(
        observations=observations,
        actions=list(rows["actions"]),
        rewards=[float(reward) for reward in rows["rewards"]],
        terminated=terminated,
        truncated=truncated,
        extra_model_outputs={name: list(column) for name, column in rows.items() if name not in OWN},
        len_lookback_buffer=0,
    )
