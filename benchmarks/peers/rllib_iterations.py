"""RLlib alone, in a loop around train(). Arguments: env runners, and how many iterations."""

from __future__ import annotations

import sys
import time

import ray
import torch

from benchmarks import rl_workload, workload


def main(env_runners: int, iterations: int) -> None:
    torch.set_num_threads(1)  # as paceline does: with a thread per core an iteration takes many times as long
    ray.init(address="local", num_cpus=env_runners + 3, include_dashboard=False)  # as many as paceline's
    algorithm = rl_workload.rllib_config(env_runners).build_algo()
    stamps, returns = [], []
    for _ in range(iterations):
        result = algorithm.train()
        stamps.append(time.monotonic())
        returns.append(result["env_runners"]["episode_return_mean"])
    algorithm.stop()
    ray.shutdown()
    workload.write_out({"stamps": stamps, "returns": returns})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
