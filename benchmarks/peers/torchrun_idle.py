"""Two workers under torchrun with a process group, doing nothing. Argument: strays or quiet."""

from __future__ import annotations

import sys

import torch.distributed as dist

from benchmarks import workload


def main(strays: bool) -> None:
    dist.init_process_group("gloo")
    workload.idle(dist.get_rank(), strays)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] == "strays")
