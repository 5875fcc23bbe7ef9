"""RLPredictor: the actions of a trained policy, for batches of observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from paceline.air.errors import ConfigError, DataError
from paceline.train.predictor import PREDICTIONS, Predictor, checked_checkpoint, prediction_columns
from paceline.train.rl.checkpoint import RLCheckpoint
from paceline.train.rl.observations import described, some_observation
from paceline.train.rl.policy import Policy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import Arrays, CheckpointOrPlace

OBSERVATION_COLUMN = "obs"


class RLPredictor(Predictor):
    """Chooses actions with a policy.

    `predict(data, explore=False)`: `data` is observations.

    - An array has a row for each observation.
    - Columns are the values of an observation, in the order of the observation space; or one column holds
      observations as vectors. It may have any name; among other columns it must be "obs".
    - For a Dict space there is a column for each of its names. Other columns are left alone.

    The actions are the column "predictions"; several values per action become "predictions_0", "predictions_1", ...,
    and those of a Dict space "predictions_" with its names. An array is answered with the array of actions.

    Each row is an observation by itself. Policies with a memory (an LSTM) are rejected: use get_policy() instead.
    """

    def __init__(self, policy: Policy, preprocessor: Preprocessor | None = None) -> None:
        if not isinstance(policy, Policy):
            raise ConfigError(f"RLPredictor takes what RLCheckpoint.get_policy() gives, not {type(policy).__name__}.")
        policy.check_takes_batches()
        super().__init__(preprocessor)
        self.policy = policy
        self.model = policy.model

    @classmethod
    def from_checkpoint(
        cls, checkpoint: CheckpointOrPlace, env: Any = None, *, policy_id: str | None = None, trust: bool = False
    ) -> Self:
        """With a policy and the preprocessor of a checkpoint, which may be its path or URI.

        See RLCheckpoint.get_policy for the arguments.
        """
        checkpoint = checked_checkpoint(checkpoint, f"{cls.__name__}.from_checkpoint")
        if not isinstance(checkpoint, RLCheckpoint):
            checkpoint = RLCheckpoint.from_checkpoint(checkpoint)
        policy = checkpoint.get_policy(env, policy_id=policy_id, trust=trust)
        return cls(policy, checkpoint.get_preprocessor())

    def _example_row(self) -> dict[str, Any] | None:
        some = some_observation(self.policy.observation_space)
        row = some if isinstance(some, Mapping) else {OBSERVATION_COLUMN: some}
        if any(isinstance(value, Mapping | tuple) for value in row.values()):
            return None
        return {name: value.tolist() for name, value in row.items()}

    def _predict_numpy(self, data: Arrays, explore: bool = False) -> Arrays:
        if not isinstance(data, Mapping):
            actions = self.policy.compute_actions(_fitting(self.policy.observation_space, data), explore)
            return _columns(actions) if isinstance(actions, Mapping | tuple) else actions
        return _columns(self.policy.compute_actions(self._observations(data), explore))

    def _observations(self, columns: Mapping[str, NDArray[np.generic]]) -> Any:
        """The columns as observations of the policy's space."""
        import numpy as np
        from gymnasium import spaces

        space = self.policy.observation_space
        if isinstance(space, spaces.Dict):
            missing = [name for name in space.spaces if name not in columns]
            if missing:
                raise DataError(
                    f"The policy takes observations of the space {described(space)}, whose names are columns: "
                    f"{', '.join(map(repr, missing))} missing. The columns are {list(columns)}."
                )
            return {name: _fitting(part, columns[name]) for name, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            parts = tuple(columns.values())
            fit = len(parts) == len(space.spaces)  # otherwise the policy says so
            return tuple(map(_fitting, space.spaces, parts)) if fit else parts
        if OBSERVATION_COLUMN in columns or len(columns) == 1:
            return _fitting(space, columns.get(OBSERVATION_COLUMN, next(iter(columns.values()))))
        values = list(columns.values())
        if any(column.ndim > 1 or column.dtype == object for column in values) or len(values) != np.prod(space.shape):
            raise DataError(
                f"The policy takes observations of the space {described(space)}: give {int(np.prod(space.shape))} "
                f'columns of numbers, or a column "{OBSERVATION_COLUMN}" of vectors. The columns are {list(columns)}; '
                "leave out others (BatchPredictor: feature_columns=[...])."
            )
        return _fitting(space, np.column_stack(values))


def _fitting(space: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Rows in the shape of the space, where they come flat or without a row to see the shape in."""
    import numpy as np

    shape = getattr(space, "shape", None)
    if shape is None or array.shape[1:] == shape or (array.dtype == object and len(array)):
        return array
    if not len(array):
        return np.zeros((0, *shape), space.dtype)
    flat = array.ndim <= 2 and int(np.prod(array.shape[1:])) == int(np.prod(shape))
    return array.reshape(len(array), *shape) if flat else array


def _columns(actions: Any, name: str = PREDICTIONS) -> dict[str, NDArray[np.generic]]:
    """Actions by column."""
    if isinstance(actions, Mapping | tuple):
        parts = actions.items() if isinstance(actions, Mapping) else enumerate(actions)
        return {column: values for key, part in parts for column, values in _columns(part, f"{name}_{key}").items()}
    return {name + column.removeprefix(PREDICTIONS): values for column, values in prediction_columns(actions).items()}
