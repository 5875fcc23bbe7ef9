"""One rank dies under torchrun --max-restarts."""

from __future__ import annotations

import os
import time
from pathlib import Path

FIRST_LINE = time.monotonic()

import torch.distributed as dist  # noqa: E402

from benchmarks import workload  # noqa: E402


def main() -> None:
    place = Path(os.environ["BENCH_PLACE"])
    if (place / "0-killed").exists():
        (place / f"0-script-{os.environ['RANK']}").write_text(str(FIRST_LINE))
    dist.init_process_group("gloo")
    # paceline and Ray call the train function with the group in place: that is the moment to compare.
    workload.kill_one_rank_once(dist.get_rank(), 0, time.monotonic())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
