"""RLLoop: what the worker of an RLTrainer runs."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.air import session
from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import CheckpointError, StopTraining
from paceline.train.rl.backend import Places, started
from paceline.train.rl.checkpoint import ALGORITHM_FILE, RLCheckpoint
from paceline.train.rounds import Rounds

BUFFER_FILE = "replay_buffer.pkl"
_SPARE_CPUS = 2
"""For tasks of RLlib's own. A task that wants more CPUs than Ray has waits forever."""


@dataclass(frozen=True)
class RLLoop:
    """Trains with RLlib, iteration by iteration, until the run is stopped."""

    config: Any
    """An AlgorithmConfig of RLlib."""
    environments: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Those that the user's program registered: name -> what makes one."""
    is_offline: bool = False
    """It learns from the rows of the dataset "train"."""
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool = True

    def __call__(self) -> None:
        from paceline.train.rl import rllib  # noqa: F401  (before anything of ray.rllib)
        from paceline.train.rl.config_envs import register_again
        from paceline.train.rl.env_runners import what_failed, with_reporting_runners
        from paceline.train.rl.offline_data import forget_datasets

        register_again(self.environments)
        try:
            config = with_reporting_runners(self._with_data(self.config.copy(copy_frozen=False)))
            with _threads(config), started(_cpus(config)), built(config) as algorithm:
                self._resume(algorithm)
                self._train(algorithm)
        except Exception as error:
            if (cause := what_failed(error)) is error:
                raise
            raise cause from None
        finally:
            forget_datasets()

    def _with_data(self, config: Any) -> Any:
        if not self.is_offline:
            return config
        from paceline.train.rl.offline import with_dataset

        return with_dataset(config, session.get_dataset_shard(TRAIN_DATASET_KEY))

    def _resume(self, algorithm: Any) -> None:
        start = session.get_checkpoint()
        if start is None:
            return
        RLCheckpoint.from_checkpoint(start).check_continued_by(type(algorithm).__name__)
        with start.as_directory() as folder:
            _restore(algorithm, Path(folder).absolute())
        algorithm.learner_group.foreach_learner(_use_own_rate)
        hand_out_weights(algorithm)

    def _train(self, algorithm: Any) -> None:
        saved = _Saved(algorithm)
        rounds = Rounds(self.checkpoint_frequency, self.checkpoint_at_end, saved.checkpoint)
        try:
            while True:  # report() raises StopTraining when the run stops
                result = algorithm.train()
                rounds.report(algorithm.iteration, row_of(result))
        except StopTraining:
            rounds.end()
            raise
        finally:
            saved.remove()


class _Saved:
    """The algorithm's checkpoints while they are on their way to the run, one at a time."""

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm
        scratch = Places.here().scratch
        assert scratch is not None
        self._directory = Path(scratch, "checkpoint")

    def checkpoint(self) -> RLCheckpoint:
        self.remove()
        self._directory.mkdir()
        self._algorithm.save_to_path(str(self._directory))
        Path(self._directory, ALGORITHM_FILE).write_text(json.dumps({"algorithm": type(self._algorithm).__name__}))
        if _keeps_buffer(self._algorithm):
            with Path(self._directory, BUFFER_FILE).open("wb") as file:
                pickle.dump(self._algorithm.local_replay_buffer.get_state(), file, protocol=5)
        return RLCheckpoint.from_directory(self._directory)

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def _restore(algorithm: Any, folder: Path) -> None:
    from paceline.train.rl.offline import restore

    try:
        restore(algorithm, str(folder))
        _restore_buffer(algorithm, folder / BUFFER_FILE)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).rstrip('.')}"
        raise CheckpointError(
            f"{folder} cannot be continued: {reason}. Its algorithm, environment and model must be those of this "
            "trainer."
        ) from error


def _use_own_rate(learner: Any) -> None:
    """The learning rate of this run, not that of the checkpoint: RLlib would set it only after the first update."""
    for optimizer, schedule in learner._optimizer_lr_schedules.items():
        if not schedule.use_schedule:
            learner._set_optimizer_lr(optimizer, lr=schedule.get_current_value())


def _restore_buffer(algorithm: Any, stored: Path) -> None:
    if algorithm.local_replay_buffer is None:
        return
    if stored.exists():
        with stored.open("rb") as file:
            algorithm.local_replay_buffer.set_state(pickle.load(file))
        return
    session.active().warn(
        "The replay buffer is not part of the checkpoint, so it fills up again with new steps. To keep it, set "
        'config["store_buffer_in_checkpoints"] = True; checkpoints are larger then.'
    )


def _keeps_buffer(algorithm: Any) -> bool:
    return algorithm.local_replay_buffer is not None and bool(
        getattr(algorithm.config, "store_buffer_in_checkpoints", False)
    )


@contextlib.contextmanager
def built(config: Any) -> Iterator[Any]:
    """The algorithm, stopped afterwards."""
    from ray.tune.trainable import trainable

    # RLlib makes a directory for its logs, in the user's home.
    home, trainable.DEFAULT_STORAGE_PATH = trainable.DEFAULT_STORAGE_PATH, Places.here().scratch
    try:
        algorithm = config.build_algo()
    finally:
        trainable.DEFAULT_STORAGE_PATH = home
    try:
        yield algorithm
    finally:
        algorithm.stop()


@contextlib.contextmanager
def _threads(config: Any) -> Iterator[None]:
    """Networks of policies are small: with a thread per core an iteration takes many times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(1, int(config.num_cpus_for_main_process)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _cpus(config: Any) -> int:
    """What all processes of the algorithm ask for together."""
    request: Any = config.algo_class.default_resource_request(config)
    wanted: float = request.required_resources.get("CPU", 0)
    return math.ceil(wanted) + _SPARE_CPUS


# -- a result of RLlib's as a row ------------------------------------------------------------------


_OUR_OWN = (
    *("config", "date", "done", "hostname", "iterations_since_restore", "node_ip", "perf", "pid", "time_since_restore"),
    *("time_this_iter_s", "time_total_s", "timestamp", "training_iteration", "trial_id"),
    *("env_runner_group", "num_training_step_calls_per_iteration"),
)
"""A row has these from the run, or as `result.config`; the last ones say nothing about the training."""
_EPISODES = {
    "episode_reward_mean": "episode_return_mean",
    "episode_reward_min": "episode_return_min",
    "episode_reward_max": "episode_return_max",
    "episode_len_mean": "episode_len_mean",
}
"""Names of Ray 2.6 and before -> those of the new API stack."""
_DETAILS = ("_timer", "_throughput", "connector", "_length_in", "_length_out", "weights_seq_no")
"""Parts of the names of what RLlib measures of its own steps: a hundred numbers. The sums are in "timers"."""


def row_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of an iteration.

    Everything that RLlib measured is there under RLlib's names, in nested dictionaries ("env_runners", "learners",
    "evaluation", ...). What episodes gave is there under the older names too. While no episode has ended it is NaN,
    so that a stop criterion can wait for it.
    """
    found = {name: _kept(value) for name, value in result.items() if name not in _OUR_OWN}
    row: dict[str, Any] = {}
    runners = found.get("env_runners")
    if isinstance(runners, dict):
        found["env_runners"] = runners = _episodes_in(runners)
        row.update({old: runners[new] for old, new in _EPISODES.items()})
        row["episodes_this_iter"] = runners.get("num_episodes", 0)
        row["episodes_total"] = runners.get("num_episodes_lifetime", 0)
    if "num_env_steps_sampled_lifetime" in found:
        row["timesteps_total"] = found["num_env_steps_sampled_lifetime"]
    evaluation = found.get("evaluation")
    if isinstance(evaluation, dict) and isinstance(evaluation.get("env_runners"), dict):
        episodes = _episodes_in(evaluation["env_runners"])
        older = {old: episodes[new] for old, new in _EPISODES.items()}
        found["evaluation"] = {**older, **evaluation, "env_runners": episodes}
    found.pop("timers", None)
    timers = result.get("timers")
    return {**row, **found, **({"timers": dict(timers)} if isinstance(timers, Mapping) else {})}


def _episodes_in(runners: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(_EPISODES.values(), math.nan), **runners}


def _kept(value: Any) -> Any:
    """Without the details, and with text as the keys of dictionaries: RLlib has numbers among them."""
    if not isinstance(value, Mapping):
        return value
    return {str(name): _kept(each) for name, each in value.items() if not any(part in str(name) for part in _DETAILS)}


# -- env runners play with the learner's weights ---------------------------------------------------
# RLlib numbers the weights that it sends, and an env runner ignores weights whose number it has already. After a
# restore it may get the number before the weights, from the stored state of another runner. Then it ignores the
# weights, and plays with the random ones that it was made with. Which message arrives first is a matter of luck:
# without this check most resumed trainings collected their next episodes with random weights.


TRIES = 5
ANSWER_TIMEOUT_S = 120.0
"""An env runner has nothing else to do here; one that is started again needs half a minute on a busy machine."""


def hand_out_weights(algorithm: Any) -> None:
    """Give every env runner the learner's weights, and compare them. Raises if that does not succeed."""
    state = algorithm.learner_group.get_state(components="learner/rl_module", inference_only=True)["learner"]
    wanted = _digests(state["rl_module"])
    for group in (algorithm.env_runner_group, algorithm.eval_env_runner_group):
        if group is not None and not any(_hand_out(group, state, wanted) for _ in range(TRIES)):
            raise CheckpointError(
                f"After {TRIES} tries some of the {group.num_remote_env_runners()} env runners still have other "
                "weights than the learner. Training with them would not continue the run. Start it again with "
                "restore(), or use fewer env runners."
            )


def _hand_out(group: Any, state: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Set the weights of all env runners of a group; True if they have them afterwards."""
    import ray

    _ask(group, functools.partial(_set_state, [ray.put(dict(state))]))
    answers = _ask(group, _runner_digests)
    # A runner may lack some weights, such as those of a critic; one whose answer is None plays no episodes.
    return len(answers) == _runners(group) and all(
        answer.items() <= wanted.items() for answer in answers if answer is not None
    )


def _set_state(reference: list[Any], runner: Any) -> None:
    """Runs where the env runner is. The state is sent to all of them once; a bare reference would be read here."""
    import ray

    if runner.module is not None:
        state = ray.get(reference[0])
        runner.set_state({**state, "weights_seq_no": 0})  # 0: take them in any case
        runner.set_state(state)  # and note the number


def _ask(group: Any, function: Callable[[Any], Any]) -> list[Any]:
    """Calls it with every env runner, after whatever was sent to that one before, and waits for the answers."""
    has_local = group.local_env_runner is not None
    found: list[Any] = group.foreach_env_runner(function, local_env_runner=has_local, timeout_seconds=ANSWER_TIMEOUT_S)
    return found


def _runners(group: Any) -> int:
    return int(group.num_remote_env_runners()) + (group.local_env_runner is not None)


def _runner_digests(runner: Any) -> dict[str, str] | None:
    """Runs where the env runner is. Weights may be large; what travels is a digest of each."""
    if runner.module is None:  # it is there for its spaces only, and plays no episodes
        return None
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule

    weights = runner.get_state(components="rl_module")["rl_module"]
    return _digests(weights if isinstance(runner.module, MultiRLModule) else {"default_policy": weights})


def _digests(weights: Any, name: str = "") -> dict[str, str]:
    """By the name of each array."""
    import numpy as np
    import xxhash

    if isinstance(weights, Mapping):
        found: dict[str, str] = {}
        for key, value in weights.items():
            found.update(_digests(value, f"{name}/{key}"))
        return found
    return {name: xxhash.xxh3_128_hexdigest(np.ascontiguousarray(weights).view(np.uint8).data)}
