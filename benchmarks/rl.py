"""Reinforcement learning: RLTrainer beside RLlib alone, with the same settings and the same seed.

`iteration` is the time from one iteration's result to the next, as the program sees it: with paceline, reports and
loggers are in it. `to the first result` is the time from before the process exists until its first iteration has ended:
imports, Ray, the algorithm, the env runners and the iteration itself. RLlib imports TensorFlow in each process wherever
it is installed. paceline does not, so that RLlib is also measured without.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.harness import OURS, PEERS, Bench, MeasureError
from benchmarks.table import Row, Target, spread

ITERATIONS = 11
"""The first one warms up and does not count."""
ALONE = "RLlib alone"
WITHOUT = "RLlib alone, no TensorFlow"
NO_OTHER_FRAMEWORKS = {"RLLIB_TEST_NO_TF_IMPORT": "1", "RLLIB_TEST_NO_JAX_IMPORT": "1"}
OURS_SCRIPT, ALONE_SCRIPT = OURS / "rl_iterations.py", PEERS / "rllib_iterations.py"
MOST = Target("ratio", "most", 1.1)


@dataclass(frozen=True)
class Training:
    """One process that trained."""

    first: float
    """Seconds until the first iteration's result."""
    iteration: float
    """Seconds per iteration: the median of those after the first."""
    returns: list[float]
    """What episodes gave on average, by iteration."""


def iterations(bench: Bench) -> Iterator[Row]:
    """With two env runners, and with the environments in the process that learns."""
    if not bench.has_ray:  # both sides need it
        return
    train(bench, "ours", 2, iterations=2)  # reads RLlib's files once, for all sides
    yield from _rows(bench, 2, bench.repeats(5, 2))
    yield from _rows(bench, 0, bench.repeats(3, 1))


def _rows(bench: Bench, env_runners: int, rounds: int) -> Iterator[Row]:
    ours, alone, without = [], [], []
    for _ in range(rounds):  # in turn, so that a slow moment of the machine meets all sides
        ours.append(train(bench, "ours", env_runners))
        alone.append(train(bench, "alone", env_runners))
        check_same_work(ours[-1], alone[-1])
        without.append(train(bench, "alone", env_runners, iterations=2, env=NO_OTHER_FRAMEWORKS))
    what = f"PPO on CartPole, {env_runners} env runners"
    mine, theirs = [each.iteration for each in ours], [each.iteration for each in alone]
    note = f"spread {spread(mine)}, {ALONE} {spread(theirs)}"
    yield Row("-", f"{what}: iteration", "s", mine, ALONE, theirs, MOST, note=note, paired=True)
    firsts = [each.first for each in ours]
    for peer, trainings in ((ALONE, alone), (WITHOUT, without)):
        yield Row(
            "-", f"{what}: to the first result", "s", firsts, peer, [each.first for each in trainings], paired=True
        )


def train(
    bench: Bench, side: str, env_runners: int, iterations: int = ITERATIONS, env: Mapping[str, str] | None = None
) -> Training:
    """Run the script of a side to its end."""
    script = OURS_SCRIPT if side == "ours" else ALONE_SCRIPT
    with bench.start(script, str(env_runners), str(iterations), env=env) as running:
        data = running.finish().data
    stamps: list[float] = data["stamps"]
    if len(stamps) != iterations:
        raise MeasureError(f"{script.name}: {len(stamps)} iterations instead of {iterations}")
    seconds = [after - before for before, after in itertools.pairwise(stamps)]
    return Training(stamps[0] - running.started, statistics.median(seconds), data["returns"])


def check_same_work(ours: Training, theirs: Training) -> None:
    """The same seed gives the same episodes, to the last digit, if the same is done."""
    if ours.returns != theirs.returns:
        raise MeasureError(f"not the same work: returns {ours.returns} here, {theirs.returns} with RLlib alone")
