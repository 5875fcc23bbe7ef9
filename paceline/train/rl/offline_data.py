"""RLlib's OfflineData, fed from a paceline dataset in the learner's own process.

RLlib's own class maps batches in actors of Ray Data, which wait forever where env runners leave them no CPUs.
Imported only where RLlib is in use already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from gymnasium import spaces
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.offline_data import OfflineData
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.torch_utils import convert_to_torch_tensor

from paceline.air.errors import ConfigError, DataError
from paceline.train.rl.offline import check_columns, offline_kind

if TYPE_CHECKING:
    from paceline.data.iterator import DataIterator

Rows: TypeAlias = dict[str, Any]
"""Column -> array, all of the same length."""

WINDOW_ROWS = 100_000
WINDOW_BYTES = 256 * 1024**2
"""Rows are shuffled within windows of at most that size: a dataset that fits into one is shuffled as a whole."""


@dataclass
class Steps:
    """Consecutive steps of one episode."""

    rows: Rows
    last_obs: Any
    """The observation after the last step."""
    terminated: bool
    truncated: bool

    def __len__(self) -> int:
        return len(self.rows["obs"])

    def cut(self, steps: int) -> tuple[Steps, Steps]:
        """The first steps, and the rest."""
        first = {name: column[:steps] for name, column in self.rows.items()}
        rest = {name: column[steps:] for name, column in self.rows.items()}
        before = Steps(first, rest["obs"][0], terminated=False, truncated=False)
        return before, Steps(rest, self.last_obs, self.terminated, self.truncated)


def row_batches(shard: DataIterator, columns: Mapping[str, str], size: int, seed: int | None) -> Iterator[Rows]:
    """Batches of exactly `size` rows without end; one may hold the end of an epoch and the beginning of the next."""
    window = max(size, _window(shard))
    parts: deque[Rows] = deque()
    have = 0
    while True:
        empty = True
        for batch in shard.iter_batches(
            batch_size=size, local_shuffle_buffer_size=window, local_shuffle_seed=_window_seed(seed)
        ):
            empty = False
            rows = {name: batch[given] for name, given in columns.items()}
            parts.append(rows)
            have += len(rows["obs"])
            while have >= size:
                yield _take(parts, size)
                have -= size
        if empty:
            raise DataError("The dataset to learn from has no rows.")


def episode_batches(
    shard: DataIterator, columns: Mapping[str, str], size: int, seed: int | None
) -> Iterator[list[Steps]]:
    """Batches of exactly `size` steps without end: episodes in random order, of which the last may be cut."""
    chosen: list[Steps] = []
    room = size
    while True:
        empty = True
        for episode in _shuffled_episodes(shard, columns, seed):
            empty = False
            while len(episode) > room:
                part, episode = episode.cut(room)
                yield [*chosen, part]
                chosen, room = [], size
            chosen.append(episode)
            room -= len(episode)
            if not room:
                yield chosen
                chosen, room = [], size
        if empty:
            raise DataError("The dataset to learn from has no episode with a step to learn from.")


def _take(parts: deque[Rows], size: int) -> Rows:
    taken: list[Rows] = []
    while size:
        part = parts.popleft()
        rows = len(part["obs"])
        if rows > size:
            parts.appendleft({name: column[size:] for name, column in part.items()})
            part = {name: column[:size] for name, column in part.items()}
        taken.append(part)
        size -= min(rows, size)
    return joined(taken)


def joined(parts: list[Rows]) -> Rows:
    """The rows of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _window(shard: DataIterator) -> int:
    first = next(iter(shard.look()), None)
    if first is None or not first.num_rows:
        return WINDOW_ROWS
    return max(1, min(WINDOW_ROWS, int(WINDOW_BYTES * first.num_rows / max(1, first.nbytes))))


def _window_seed(seed: int | None) -> int | None:
    return None if seed is None else seed % 2**63


def _shuffled_episodes(shard: DataIterator, columns: Mapping[str, str], seed: int | None) -> Iterator[Steps]:
    """The episodes of one epoch, shuffled within windows."""
    window, epoch = _window(shard), shard.epoch
    waiting: list[Steps] = []
    rows = windows = 0

    def shuffled() -> Iterator[Steps]:
        keys = np.random.SeedSequence([(seed or 0) % 2**64, epoch, windows])
        for index in np.random.default_rng(keys).permutation(len(waiting)):
            yield waiting[index]

    for episode in _episodes(shard, columns):
        waiting.append(episode)
        rows += len(episode)
        if rows >= window:
            yield from shuffled()
            waiting, rows, windows = [], 0, windows + 1
    yield from shuffled()


def _episodes(shard: DataIterator, columns: Mapping[str, str]) -> Iterator[Steps]:
    """The episodes of one epoch in the dataset's order."""
    parts: list[Rows] = []
    ended: set[Any] = set()
    for batch in shard.iter_batches(batch_size=4096):
        rows = {name: batch[given] for name, given in columns.items()}
        start = 0
        for end in _ends(rows, after=parts):
            parts += [{name: column[start:end] for name, column in rows.items()}] if end > start else []
            yield from _episode(parts, ended)
            parts, start = [], end
        parts += [{name: column[start:] for name, column in rows.items()}] if start < len(rows["obs"]) else []
    if parts:
        yield from _episode(parts, ended)


def _ends(rows: Rows, after: list[Rows]) -> list[int]:
    """Where episodes end, as numbers of rows from the start; 0 if the one before ended with its last row."""
    if "eps_id" in rows:
        ids = rows["eps_id"]
        ends = [] if not after or after[-1]["eps_id"][-1] == ids[0] else [0]
        return [*ends, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist()]
    over = rows["terminateds"].astype(bool) | rows["truncateds"].astype(bool)
    return [*(np.flatnonzero(over) + 1).tolist()]


def _episode(parts: list[Rows], ended: set[Any]) -> Iterator[Steps]:
    rows = joined(parts)
    _check_order(rows, ended)
    terminated = bool(rows["terminateds"][-1]) if "terminateds" in rows else False
    truncated = not terminated
    if "new_obs" in rows or terminated:  # after a terminated step, nothing depends on the observation
        yield Steps(rows, rows["new_obs" if "new_obs" in rows else "obs"][-1], terminated, truncated)
    elif len(rows["obs"]) > 1:  # the last step leads to an observation that was not recorded
        yield Steps({name: column[:-1] for name, column in rows.items()}, rows["obs"][-1], terminated, truncated)


def _check_order(rows: Rows, ended: set[Any]) -> None:
    """The rows of an episode must follow each other."""
    advice = "Sort the dataset by eps_id and t, and do not shuffle it: whole episodes are shuffled while training."
    if "eps_id" in rows:
        id_ = rows["eps_id"][0]
        id_ = id_.item() if isinstance(id_, np.generic) else id_
        if id_ in ended:
            raise DataError(f"The rows of episode eps_id={id_!r} do not follow each other. {advice}")
        ended.add(id_)
    where = f"episode eps_id={rows['eps_id'][0]!r}" if "eps_id" in rows else "an episode"
    if "t" in rows and (np.diff(rows["t"].astype(np.int64)) <= 0).any():
        raise DataError(f"The steps (column t) of {where} are not in order. {advice}")
    if "terminateds" in rows and rows["terminateds"][:-1].any():
        raise DataError(f"The column terminateds says that {where} ends before its last row. {advice}")


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
