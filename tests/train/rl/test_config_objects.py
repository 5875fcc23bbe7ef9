"""Algorithms by name and by class, AlgorithmConfig objects, and environments that only the user's process knows."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

gymnasium = pytest.importorskip("gymnasium")
ray = pytest.importorskip("ray")

from paceline.air.errors import ConfigError  # noqa: E402
from paceline.train.rl.config import (  # noqa: E402
    algorithm_class,
    algorithm_config,
    check_together,
    with_env_runners,
)
from paceline.train.rl.config_envs import register_again, shipped_registrations  # noqa: E402

pytestmark = [
    pytest.mark.rl,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:google.*"),
    pytest.mark.filterwarnings("ignore::UserWarning:gymnasium.*"),  # of environments that RLlib registers itself
]


def made(algorithm: str, given: Any) -> Any:
    return algorithm_config(algorithm_class(algorithm), given)


def test_names_of_algorithms() -> None:
    from ray.rllib.algorithms.ppo import PPO

    class Mine(PPO):  # type: ignore[misc]
        pass

    assert algorithm_class("PPO") is algorithm_class("ppo") is algorithm_class(PPO) is PPO
    assert algorithm_class("Impala").__name__ == "IMPALA"
    assert algorithm_class(Mine) is Mine
    assert algorithm_config(Mine, {"lr": 0.1}).algo_class is Mine


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("A2C", "no longer has A2C; the nearest is 'PPO'"),
        ("TD3", "no longer has TD3; the nearest is 'SAC'"),
        ("ApexDQN", "the nearest is 'DQN'"),
        ("BanditLinUCB", "no longer has Bandit"),
        ("PPOO", "did you mean PPO"),
        ("nothing of the kind", "there are: APPO, BC"),
        (dict, "give the name of an RLlib algorithm"),
        (3, "give the name of an RLlib algorithm"),
    ],
)
def test_unknown_algorithms(name: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        algorithm_class(name)


def test_an_algorithm_of_the_old_stack_is_refused() -> None:
    from ray.rllib.algorithms.ppo import PPO, PPOConfig

    class Old(PPO):  # type: ignore[misc]
        @classmethod
        def get_default_config(cls) -> Any:
            return PPOConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)

    with pytest.raises(ConfigError, match=r"old API stack.*port it to RLModule"):
        algorithm_class(Old)


def test_an_algorithm_config_is_copied() -> None:
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.bc import BCConfig
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.ppo import PPO, PPOConfig

    class Mine(PPO):  # type: ignore[misc]
        pass

    own = PPOConfig().environment("CartPole-v1", env_config={"a": 1}).training(lr=0.1)
    own.freeze()
    copied = algorithm_config(PPO, own)
    copied.env_config["a"] = 2
    assert with_env_runners(copied, 3, 2.0, None, use_gpu=False) is copied
    assert (copied.num_env_runners, copied.num_cpus_per_env_runner, copied.num_gpus_per_learner) == (3, 2.0, 0)
    assert (own.num_env_runners, own.env_config, own.lr) == (2, {"a": 1}, 0.1)
    assert algorithm_config(Mine, own).algo_class is Mine
    assert algorithm_config(algorithm_class("APPO"), APPOConfig()).num_learners == 0
    assert with_env_runners(copied, None, None, 0.5, use_gpu=True).num_env_runners == 3
    assert (copied.num_gpus_per_env_runner, copied.num_gpus_per_learner) == (0.5, 1)

    with pytest.raises(ConfigError, match="is a DQNConfig, which does not fit the algorithm SAC: give a SACConfig"):
        algorithm_config(algorithm_class("SAC"), DQNConfig())
    with pytest.raises(ConfigError, match="BCConfig, which does not fit the algorithm MARWIL"):
        algorithm_config(algorithm_class("MARWIL"), BCConfig())
    with pytest.raises(ConfigError, match="is for Mine, not for PPO: give algorithm=Mine"):
        algorithm_config(PPO, PPOConfig(algo_class=Mine))
    with pytest.raises(ConfigError, match="old API stack"):
        algorithm_config(PPO, PPOConfig().api_stack(False, False))
    with pytest.raises(ConfigError, match="PyTorch only"):
        algorithm_config(PPO, PPOConfig().framework("tf2"))


def test_settings_are_checked_together() -> None:
    config = made(
        "PPO", {"env": "CartPole-v1", "rollout_fragment_length": 300, "train_batch_size": 1000, "num_workers": 1}
    )
    with pytest.raises(ConfigError, match="rollout_fragment_length"):
        check_together(config)
    check_together(config.env_runners(rollout_fragment_length="auto"))
    assert config.rollout_fragment_length == "auto"


def test_importing_the_module_imports_neither_ray_nor_torch() -> None:
    code = "import sys, paceline.train.rl.config; print([name for name in ('ray', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Corridor(gymnasium.Env):  # type: ignore[misc, name-defined]
    """Walk to the right end; RLlib passes its env config as one argument, gymnasium by keywords."""

    def __init__(self, config: Any = None, length: int = 5) -> None:
        self.length = int((config or {}).get("length", length))
        self.observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,))
        self.action_space = gymnasium.spaces.Discrete(2)

    def _seen(self) -> Any:
        import numpy as np

        return np.array([self.place], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.place = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = max(0, self.place + (1 if action else -1))
        return self._seen(), -0.1, self.place >= self.length, False, {}


@pytest.fixture(scope="module", autouse=True)
def own_imports() -> None:
    """Without TensorFlow, as in the library; the tests import parts of RLlib themselves."""
    from paceline.train.rl import rllib  # noqa: F401


@pytest.fixture(scope="module")
def own_ray() -> Iterator[None]:
    """A Ray of this file, as a worker has one."""
    import torch

    from paceline.train.rl.rllib import WITHOUT_OTHER_FRAMEWORKS

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(prefix="pl", dir="/tmp")  # a short path: Ray's sockets are in it
    settings = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False, "_temp_dir": folder}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", folder)  # torch sets it when an algorithm is built
        for name, value in WITHOUT_OTHER_FRAMEWORKS.items():  # the actors start faster
            patch.setenv(name, value)
        ray.init(address="local", num_cpus=2, **settings)
        yield
        ray.shutdown()
    torch.set_num_threads(threads)
    shutil.rmtree(folder, ignore_errors=True)


OLD_DICT = {
    "framework": "torch",
    "num_workers": 0,
    "num_envs_per_worker": 2,
    "train_batch_size": 128,
    "sgd_minibatch_size": 64,
    "num_sgd_iter": 2,
    "lambda": 0.95,
    "lr_schedule": [[0, 1e-3], [10_000, 1e-4]],
    "observation_filter": "MeanStdFilter",
    "model": {"fcnet_hiddens": [16], "fcnet_activation": "relu", "vf_share_layers": True},
    "exploration_config": {"type": "StochasticSampling"},
    "horizon": None,
    "evaluation_interval": 1,
    "evaluation_num_episodes": 1,
    "evaluation_config": {"explore": False, "num_envs_per_worker": 1},
    "seed": 1,
}


@pytest.mark.usefixtures("own_ray")
def test_an_old_dict_trains() -> None:
    config = made("PPO", {"env": "CartPole-v1", **OLD_DICT})
    check_together(config)
    algorithm = config.build_algo()
    try:
        result = algorithm.train()
        encoder = algorithm.get_module().encoder
        assert sum(weights.numel() for weights in encoder.parameters()) == 4 * 16 + 16
    finally:
        algorithm.stop()
    assert result["num_env_steps_sampled_lifetime"] >= 128
    assert result["env_runners"]["episode_return_mean"] > 0
    assert result["evaluation"]["env_runners"]["num_episodes"] == 1


PROGRAM = """
import cloudpickle, gymnasium, sys
from paceline.train.rl.config import algorithm_class, algorithm_config
from paceline.train.rl.config_envs import shipped_registrations
from ray.tune import register_env
import tests.train.rl.test_config_objects as here
cloudpickle.register_pickle_by_value(here)

class Mine(here.Corridor):
    pass

register_env("corridor", lambda config: here.Corridor(config))
gymnasium.register("Corridor-v0", entry_point=here.Corridor, max_episode_steps=30)
gymnasium.register("Mine-v0", entry_point="__main__:Mine", max_episode_steps=30)
shipped = {}
for env in ("corridor", "Corridor-v0", "Mine-v0", "tests.train.rl.test_config_objects.Corridor"):
    config = algorithm_config(algorithm_class("PPO"), {"env": "CartPole-v1", "evaluation_config": {"env": env}})
    shipped.update(shipped_registrations(config))
with open(sys.argv[1], "wb") as file:
    cloudpickle.dump(shipped, file)
"""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What another process ships for the environments that it registered."""
    out = tmp_path_factory.mktemp("other") / "shipped"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = cloudpickle.loads(out.read_bytes())
    return found


@pytest.mark.usefixtures("own_ray")
@pytest.mark.parametrize(
    ("env", "length", "runners"),
    [
        ("corridor", 3, 1),
        ("Corridor-v0", 5, 0),
        ("Mine-v0", 5, 1),
        ("tests.train.rl.test_config_objects.Corridor", 3, 0),
    ],
)
def test_environments_reach_the_env_runners(env: str, length: int, runners: int, shipped: dict[str, Any]) -> None:
    register_again({env: shipped[env]})
    given = {"length": 3} if length == 3 else {}
    small = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}}
    config = made("PPO", {"env": env, "env_config": given, "num_workers": runners, "seed": 1, **small})
    algorithm = config.build_algo()
    try:
        assert algorithm.train()["num_env_steps_sampled_lifetime"] >= 64
        lengths = algorithm.env_runner_group.foreach_env_runner(
            lambda runner: runner.env.unwrapped.envs[0].unwrapped.length, local_env_runner=runners == 0
        )
        assert lengths == [length]
    finally:
        algorithm.stop()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("CartPol-v1", "neither with ray.tune nor with gymnasium. Did you mean 'CartPole-v1'"),
        ("my_env", "neither with ray.tune nor with gymnasium.*register_env"),
        ("paceline.nothing.Env", "there is no such class"),
        (lambda config: None, "'env' is a function.*register_env"),
        (Corridor(), "'env' is an object of Corridor"),
        (dict, "is the class dict, which is not an environment"),
        (None, "config has no 'env', and PPO learns in one"),
    ],
)
def test_environments_that_nobody_can_make(env: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        shipped_registrations(made("PPO", {"env": env}))


def test_what_every_process_knows_is_not_shipped() -> None:
    assert shipped_registrations(made("PPO", {"env": "CartPole-v1"})) == {}
    assert shipped_registrations(made("PPO", {"env": Corridor})) == {}
    assert shipped_registrations(made("BC", {})) == {}
    with pytest.raises(ConfigError, match="CartPole-v1"):
        shipped_registrations(made("PPO", {"env": "CartPole-v1", "evaluation_config": {"env": "CartPol-v1"}}))
