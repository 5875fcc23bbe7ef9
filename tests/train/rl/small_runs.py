"""Checkpoints of RLlib algorithms that have trained for a moment, for tests of what is done with checkpoints."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
from gymnasium import spaces
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from ray.rllib.env.multi_agent_env import MultiAgentEnv

CARTPOLE = {"id": "CartPole-v1"}
OBSERVATIONS = {
    "dict": spaces.Dict({"where": spaces.Box(-1.0, 1.0, (2,), np.float32), "mode": spaces.Discrete(3)}),
    "discrete": spaces.Discrete(5),
}
ACTIONS = spaces.Dict({"push": spaces.Box(0.0, 5.0, (2,), np.float32), "turn": spaces.Discrete(3)})

SEEN: list[tuple[Any, Any, bool]] = []
"""What environments of this process showed, which action they got for it, and whether an episode began with it."""


class Recorded(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that writes to SEEN."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(Spaces(config) if "observations" in config else gym.make(config["id"]))

    def reset(self, **kwargs: Any) -> Any:
        self.shown, info = self.env.reset(**kwargs)
        self.is_first = True
        return self.shown, info

    def step(self, action: Any) -> Any:
        SEEN.append((self.shown, action, self.is_first))
        self.is_first = False
        self.shown, *rest = self.env.step(action)
        return self.shown, *rest


class Spaces(gym.Env[Any, Any]):
    """Random observations of the spaces that `config` names."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.observation_space = OBSERVATIONS[config["observations"]]
        self.action_space = ACTIONS
        self.steps = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps > 8, False, {}


class TwoAgents(MultiAgentEnv):
    """The agents "near" and "far" see a different number of values."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.agents = self.possible_agents = ["near", "far"]
        self.observation_spaces = {
            name: spaces.Box(-1.0, 1.0, (2 + i,), np.float32) for i, name in enumerate(self.agents)
        }
        self.action_spaces = {"near": spaces.Discrete(2), "far": spaces.Box(-3.0, 9.0, (1,), np.float32)}
        self.steps = 0

    def _show(self) -> Any:
        self.shown = {name: space.sample() for name, space in (self.observation_spaces or {}).items()}
        return self.shown

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.steps = 0
        return self._show(), {}

    def step(self, action_dict: Any) -> Any:
        self.steps += 1
        SEEN.append((self.shown, action_dict, self.steps == 1))
        return self._show(), dict.fromkeys(self.agents, 1.0), {"__all__": self.steps > 8}, {"__all__": False}, {}


def flatten(env: Any = None, spaces: Any = None, device: Any = None) -> Any:
    from ray.rllib.connectors.env_to_module import FlattenObservations

    return FlattenObservations()


def mean_std(env: Any = None, spaces: Any = None, device: Any = None) -> Any:
    from ray.rllib.connectors.env_to_module import MeanStdFilter

    return MeanStdFilter()


def history(env: Any = None, spaces: Any = None, device: Any = None) -> Any:
    from ray.rllib.connectors.env_to_module import FlattenObservations, PrevActionsPrevRewards

    return [PrevActionsPrevRewards(n_prev_actions=1, n_prev_rewards=1), FlattenObservations()]


class Halved(SingleAgentObservationPreprocessor):
    """A connector as users write them: the network sees half of everything."""

    def preprocess(self, observation: Any, episode: Any) -> Any:
        return observation / 2


class Opposite(ConnectorV2):
    """Does the opposite of what the network says."""

    def __call__(self, *, batch: Any, **_: Any) -> Any:
        self.foreach_batch_item_change_in_place(batch=batch, column="actions", func=lambda action, *_: 1 - action)
        return batch


def own_connectors() -> Any:
    halved = ppo(CARTPOLE, connector=lambda env, spaces, device: Halved())
    return halved.env_runners(module_to_env_connector=lambda env, spaces: Opposite())


def ppo(env_config: dict[str, Any], connector: Any = None, **model: Any) -> Any:
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    return (
        PPOConfig()
        .environment(Recorded, env_config=env_config)
        .env_runners(num_env_runners=0, env_to_module_connector=connector)
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16], **model))
        .debugging(seed=1)
    )


def sac() -> Any:
    from ray.rllib.algorithms.sac import SACConfig

    return (
        SACConfig()
        .environment(Recorded, env_config={"id": "Pendulum-v1"})
        .env_runners(num_env_runners=0, rollout_fragment_length=8)
        .training(train_batch_size_per_learner=8, num_steps_sampled_before_learning_starts=8)
        .debugging(seed=1)
    )


def dqn() -> Any:
    from ray.rllib.algorithms.dqn import DQNConfig

    return (
        DQNConfig()
        .environment(Recorded, env_config=CARTPOLE)
        .env_runners(num_env_runners=0, rollout_fragment_length=8)
        .training(train_batch_size_per_learner=8, num_steps_sampled_before_learning_starts=8)
        .debugging(seed=1)
    )


def two_policies() -> Any:
    return (
        ppo({})
        .environment(TwoAgents)
        .multi_agent(policies={"near", "far"}, policy_mapping_fn=lambda agent, *_, **__: agent)
    )


RUNS = {
    "cartpole": lambda: ppo(CARTPOLE),
    "pendulum": sac,
    "dqn": dqn,
    "filter": lambda: ppo(CARTPOLE, connector=mean_std),
    "history": lambda: ppo(CARTPOLE, connector=history),
    "lstm": lambda: ppo({"id": "Pendulum-v1"}, use_lstm=True, lstm_cell_size=8, max_seq_len=4),
    "filter_lstm": lambda: ppo(CARTPOLE, mean_std, use_lstm=True, lstm_cell_size=8, max_seq_len=4),
    "own": own_connectors,
    "dict": lambda: ppo({"observations": "dict"}, flatten),
    "discrete": lambda: ppo({"observations": "discrete"}, flatten),
    "agents": two_policies,
}


def save(name: str, folder: Path) -> None:
    """Train for a moment and save; and what RLlib itself does then, as folder/seen.pkl."""
    algorithm = RUNS[name]().build_algo()
    algorithm.train()
    algorithm.save_to_path(str(folder / "saved"))
    for connector in algorithm.env_runner._env_to_module.connectors:
        connector._update_stats = False  # of the filter: as it was saved
    SEEN.clear()
    algorithm.env_runner.sample(num_timesteps=40, explore=False, force_reset=True)
    (folder / "seen.pkl").write_bytes(pickle.dumps(SEEN))
    algorithm.stop()


def save_all(place: str) -> None:
    """Checkpoints of all RUNS in folders of their names."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rl-", dir="/tmp") as folder:  # sockets need short paths
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        for name in RUNS:
            Path(place, name).mkdir()
            save(name, Path(place, name))
        ray.shutdown()
