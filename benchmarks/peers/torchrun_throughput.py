"""DDP throughput under torchrun. Argument: windows of steps."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks import workload


def main(windows: int) -> None:
    dist.init_process_group("gloo")
    rate = workload.samples_per_second(DistributedDataParallel(workload.mlp()), windows)
    if dist.get_rank() == 0:
        workload.write_out({"rate": rate, "threads": torch.get_num_threads()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
