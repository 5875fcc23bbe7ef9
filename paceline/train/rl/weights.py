"""Makes sure that env runners play with the learner's weights.

RLlib numbers the weights that it sends, and an env runner ignores weights whose number it has already. After a restore
it may get the number before the weights, from the stored state of another runner. Then it ignores the weights, and
plays with the random ones that it was made with. Which message arrives first is a matter of luck: without this check
most resumed trainings collected their next episodes with random weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from paceline.air.errors import CheckpointError

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
