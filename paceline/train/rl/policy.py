"""Policy: chooses actions for observations, with a network that RLlib trained. It needs no Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError
from paceline.train.rl.checkpoint import (
    check_layout,
    chosen_module,
    load_connectors,
    load_module,
    load_settings,
)
from paceline.train.rl.observations import observation_batch, rows_in, some_observation

if TYPE_CHECKING:
    import torch

_TO_MODULE = frozenset(
    [
        "AddObservationsFromEpisodesToBatch",
        "AddStatesFromEpisodesToBatch",
        "AddTimeDimToBatchAndZeroPad",
        "AgentToModuleMapping",
        "BatchIndividualItems",
        "NumpyToTensor",
    ]
)
_TO_ENV = frozenset(
    [
        "GetActions",
        "ListifyDataForVectorEnv",
        "ModuleToAgentUnmapping",
        "NormalizeAndClipActions",
        "RemoveSingleTsTimeRankFromBatch",
        "TensorToNumpy",
        "UnBatchToIndividualItems",
    ]
)
_SEVERAL_AGENTS = frozenset(["AgentToModuleMapping", "ModuleToAgentUnmapping"])
_WITH_HISTORY = frozenset(["FrameStackingEnvToModule", "FrameStacking", "PrevActionsPrevRewards"])


class Policy:
    """A policy of an RLlib checkpoint directory: what to do, given what is observed.

        policy = result.checkpoint.get_policy()
        observation, _ = env.reset()
        action = policy.compute_single_action(observation)
        observation, reward, terminated, truncated, _ = env.step(action)

    Observations are those of the environment. What the training did to them (flattening, a filter with the mean and
    deviation of all observations) is done here too, with the stored statistics. Connectors of your own
    see each observation as the first one of an episode. Actions are ready for the environment: within the bounds
    of its action space.

    With `explore=True` actions are sampled as in training. DQN explores with the epsilon that it had reached.

    In a process without Ray this starts none.
    """

    model: Any
    """The RLModule, which is a torch.nn.Module, in evaluation mode."""
    observation_space: Any
    action_space: Any

    def __init__(self, path: str | os.PathLike[str], policy_id: str | None = None, *, place: str | None = None) -> None:
        """`path` is a directory that an RLlib algorithm has saved itself to. Reading it runs what is in its pickles:
        use RLCheckpoint.get_policy() for one that you may not trust."""
        folder, place = Path(path), place or str(path)
        check_layout(folder, place)
        self.policy_id = chosen_module(folder, policy_id, place)
        self.model = load_module(folder, self.policy_id, place).eval()
        self._to_module, self._to_env, self._steps = load_connectors(folder, place)
        self.observation_space = self.model.observation_space
        self.action_space = self.model.action_space
        inputs, outputs = _names(self._to_module), _names(self._to_env)
        self._plain_inputs, self._plain_outputs = inputs <= _TO_MODULE, outputs <= _TO_ENV
        self._unsupported = ""
        if history := sorted(inputs & _WITH_HISTORY):
            self._unsupported = f"{history[0]} looks at earlier steps of an episode, which a Policy does not know"
        elif not (self._plain_inputs and self._plain_outputs) and (inputs | outputs) & _SEVERAL_AGENTS:
            added = sorted((inputs - _TO_MODULE) | (outputs - _TO_ENV))
            self._unsupported = f"{added[0]} works on the observations or actions of several agents at once"
        elif self._to_module is not None and not (inputs | outputs) & _SEVERAL_AGENTS:
            self.observation_space = self._to_module.input_observation_space
            self.action_space = self._to_env.input_action_space
        self._scaling = self._chosen_scaling(folder, place)
        for connector in _connectors(self._to_module):
            if hasattr(connector, "_update_stats"):  # a filter must not learn from what it is asked about
                connector._update_stats = False

    def compute_single_action(self, obs: Any, explore: bool = False, *, state: Any = None) -> Any:
        """The action for one observation.

        A policy with a memory (an LSTM) answers with (action, state): pass that state with the next observation of
        the episode, and None with the first one.
        """
        self._check_supported()
        batch = observation_batch(self.observation_space, obs, single=True)
        if state is not None and not self.is_stateful:
            raise ConfigError(f"state is given, but the policy {self.policy_id!r} has no memory. Leave it out.")
        actions, state = self._actions(batch, explore, state)
        action = _mapped(lambda part: part[0], actions)
        return (action, state) if self.is_stateful else action

    def compute_actions(self, obs_batch: Any, explore: bool = False) -> Any:
        """The actions for a batch of observations, one per row: an array, or a dict or tuple of arrays.

        `obs_batch` is an array with a row per observation, a dict or tuple of such arrays where the observation
        space is a Dict or Tuple, or a list of observations. A policy with a memory cannot do this, because it
        needs the order of the observations.
        """
        self.check_takes_batches()
        batch = observation_batch(self.observation_space, obs_batch)
        if rows_in(batch) == 0:
            one = _mapped(lambda part: part[None], some_observation(self.observation_space))
            return _mapped(lambda part: part[:0], self._actions(one, explore, None)[0])
        return self._actions(batch, explore, None)[0]

    @property
    def is_stateful(self) -> bool:
        """Whether it has a memory, as an LSTM has."""
        return bool(self.model.is_stateful())

    def check_takes_batches(self) -> None:
        """Refuse a policy that needs to know more than the rows of a batch."""
        self._check_supported()
        if self.is_stateful:
            raise ConfigError(
                f"The policy {self.policy_id!r} has a memory, so the rows of a batch do not say enough. Call "
                "compute_single_action(obs, state=state), observation by observation."
            )

    def _check_supported(self) -> None:
        if self._unsupported:
            raise ConfigError(
                f"The policy {self.policy_id!r} cannot be asked for actions here: its connector {self._unsupported}. "
                "get_model() gives its network."
            )

    def _actions(self, observations: Any, explore: bool, state: Any) -> tuple[Any, Any]:
        """The actions for all rows, and the state after them."""
        import torch

        with torch.inference_mode():
            if self._plain_inputs and self._plain_outputs:
                return self._chosen(self._forward(self._inputs(observations, state), explore), explore)
            common = {
                "rl_module": self.model,
                "episodes": self._episodes(observations),
                "explore": explore,
                "shared_data": {},
            }
            batch = self._to_module(batch={}, **common)
            if state is not None:
                batch["state_in"] = self._state_in(state)
            outputs = self._forward(batch, explore)
            if self._plain_outputs:  # RLlib's own also computes probabilities, which fails for dicts of actions
                return self._chosen(outputs, explore)
            outputs = self._to_env(batch=outputs, **common)
        actions = outputs["actions_for_env"] if "actions_for_env" in outputs else outputs["actions"]
        return self._typed(actions), outputs["state_out"][0] if self.is_stateful else None

    def _inputs(self, observations: Any, state: Any) -> dict[str, Any]:
        """What RLlib's default connectors make of observations, for all rows at once."""
        from ray.rllib.utils.torch_utils import convert_to_torch_tensor

        tensors = convert_to_torch_tensor(observations)
        if not self.is_stateful:
            return {"obs": tensors}
        return {"obs": _mapped(lambda part: part[:, None], tensors), "state_in": self._state_in(state)}  # one time step

    def _episodes(self, observations: Any) -> list[Any]:
        """What connectors take: each row is the first observation of an episode."""
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode

        episodes = []
        for row in range(rows_in(observations)):
            episode = SingleAgentEpisode(observation_space=self.observation_space, action_space=self.action_space)
            episode.add_env_reset(_mapped(lambda part, row=row: part[row].copy(), observations), {})
            episodes.append(episode)
        return episodes

    def _chosen(self, outputs: dict[str, Any], explore: bool) -> tuple[Any, Any]:
        """What RLlib's default connectors make of the network's outputs, for all rows at once."""
        from ray.rllib.utils.numpy import convert_to_numpy

        if "actions" in outputs:
            actions = outputs["actions"]
        else:
            kind = "exploration" if explore else "inference"
            distribution = getattr(self.model, f"get_{kind}_action_dist_cls")()
            chances = distribution.from_logits(outputs["action_dist_inputs"])
            actions = (chances if explore else chances.to_deterministic()).sample()
        state = None
        if self.is_stateful:
            actions = _mapped(lambda part: part[:, 0], actions)
            state = convert_to_numpy(_mapped(lambda part: part[0], outputs["state_out"]))
        return self._typed(self._scaled(convert_to_numpy(actions))), state

    def _forward(self, batch: dict[str, Any], explore: bool) -> dict[str, Any]:
        # The number of steps is what DQN's epsilon depends on.
        outputs = (
            self.model.forward_exploration(batch, t=self._steps) if explore else self.model.forward_inference(batch)
        )
        return dict(outputs)

    def _state_in(self, state: Any) -> dict[str, torch.Tensor]:
        from ray.rllib.utils.torch_utils import convert_to_torch_tensor

        initial = self.model.get_initial_state()
        if state is None:
            state = initial
        elif not isinstance(state, Mapping) or set(state) != set(initial):
            raise ConfigError(
                f"state must be what compute_single_action() gave with the action, a dict with {sorted(initial)}."
            )
        with_row: dict[str, torch.Tensor] = _mapped(lambda part: part[None], convert_to_torch_tensor(dict(state)))
        return with_row

    def _chosen_scaling(self, folder: Path, place: str) -> str | None:
        """What becomes of the network's actions: "unsquash", "clip", or nothing."""
        if self._to_env is None:  # trained from stored data, without an environment
            settings = load_settings(folder, place)
        else:
            settings = next(
                (vars(each) for each in _connectors(self._to_env) if hasattr(each, "normalize_actions")), {}
            )
        if settings.get("normalize_actions"):
            return "unsquash"
        return "clip" if settings.get("clip_actions") else None

    def _scaled(self, actions: Any) -> Any:
        """Within the bounds of the action space, which the rows of a batch share."""
        from ray.rllib.utils.spaces import space_utils

        if self._scaling is None:
            return actions
        utils: Any = space_utils
        scale = utils.unsquash_action if self._scaling == "unsquash" else utils.clip_action
        return scale(actions, utils.get_base_struct_from_space(self.action_space))

    def _typed(self, actions: Any, space: Any = None) -> Any:
        """In the types of the action space."""
        space = self.action_space if space is None else space
        if isinstance(actions, Mapping):
            return {name: self._typed(part, space[name]) for name, part in actions.items()}
        if isinstance(actions, tuple):
            return tuple(self._typed(part, space[index]) for index, part in enumerate(actions))
        return actions.astype(space.dtype, copy=False)


def _connectors(pipeline: Any) -> list[Any]:
    """The connectors of a pipeline, those of pipelines inside of it too."""
    if pipeline is None:
        return []
    return [
        inner
        for each in pipeline.connectors
        for inner in (_connectors(each) if hasattr(each, "connectors") else [each])
    ]


def _names(pipeline: Any) -> frozenset[str]:
    """What its connectors are; those of the user have names that RLlib's cannot have."""
    kinds = [type(each) for each in _connectors(pipeline)]
    is_own = [kind.__module__.startswith("ray.rllib.connectors.") for kind in kinds]
    return frozenset(
        kind.__name__ if own else f"{kind.__module__}.{kind.__name__}" for kind, own in zip(kinds, is_own, strict=True)
    )


def _mapped(function: Any, structure: Any) -> Any:
    """The same structure of dicts and tuples, with the function applied to each array."""
    if isinstance(structure, Mapping):
        return {name: _mapped(function, part) for name, part in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_mapped(function, part) for part in structure)
    return function(structure)
