"""Two workers under torchrun: DDP, three steps, one report (a file written by rank 0)."""

from __future__ import annotations

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks import workload


def main() -> None:
    dist.init_process_group("gloo")
    loss = workload.few_steps(DistributedDataParallel(workload.small_model()))
    if dist.get_rank() == 0:
        workload.write_out({"loss": loss})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
