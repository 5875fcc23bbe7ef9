"""Two workers forked by accelerate's debug_launcher: DDP, three steps, one report (a file)."""

from __future__ import annotations

from accelerate import Accelerator, debug_launcher

from benchmarks import workload


def train() -> None:
    accelerator = Accelerator(cpu=True)
    loss = workload.few_steps(accelerator.prepare(workload.small_model()))
    if accelerator.is_main_process:
        workload.write_out({"loss": loss})


if __name__ == "__main__":
    debug_launcher(train, num_processes=2)
