"""FSDP2 under torchrun. Argument: windows of steps."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from benchmarks import sharded_workload, workload


def main(windows: int) -> None:
    dist.init_process_group("gloo")
    rate = sharded_workload.steps_per_second(sharded_workload.shard(sharded_workload.blocks()), windows)
    if dist.get_rank() == 0:
        workload.write_out({"rate": rate, "threads": torch.get_num_threads()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
