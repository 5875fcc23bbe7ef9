"""Profile a few steps on every worker; the traces are files of the run."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from paceline import train
from paceline.air import RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer, TorchWorkerProfiler, prepare_model


def train_func() -> None:
    model = prepare_model(nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    worker_profiler = TorchWorkerProfiler()
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=worker_profiler.trace_handler,
    ) as profiler:
        for step in range(6):
            optimizer.zero_grad()
            loss = model(torch.randn(32, 64)).square().mean()
            loss.backward()
            optimizer.step()
            profiler.step()
            # The paths of new traces become part of the row.
            train.report({"step": step, "loss": loss.item(), **worker_profiler.get_and_clear_profile_traces()})


if __name__ == "__main__":
    result = TorchTrainer(
        train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=1)
    ).fit()
    assert result.log_dir is not None
    for path in sorted(result.log_dir.glob("rank_*/pytorch_profiler/*.pt.trace.json")):
        print(f"{path.relative_to(result.log_dir)}: {path.stat().st_size} bytes")
    print(f"tensorboard --logdir {result.log_dir}   # with the torch-tb-profiler plugin")
