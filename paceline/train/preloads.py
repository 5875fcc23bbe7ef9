"""Modules that are loaded once, before workers are forked, for whichever framework trains with PyTorch."""

FOR_TORCH_TRAINING = (
    "torch",
    # Pulled in by the first optimizer step or DDP model: hundreds of modules, seconds.
    "torch._dynamo",
    "torch.profiler._cupti_monitor",
    # torch.save and torch.load, a DataLoader with worker processes.
    "torch.utils.serialization.config",
    "multiprocessing.popen_fork",
    "multiprocessing.queues",
    "multiprocessing.synchronize",
    # What every worker of ours goes through, besides what all runs load.
    "xxhash",
    "paceline.train.functions",
)
