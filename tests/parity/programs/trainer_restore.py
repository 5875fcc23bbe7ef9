"""A run that is interrupted by an error and restored from its path (Ray 2.7)."""

import os
import tempfile

import torch
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.base_trainer import TrainingFailedError
from ray.train.torch import TorchTrainer

STORAGE = tempfile.mkdtemp()
BROKEN = os.path.join(STORAGE, "broken")
open(BROKEN, "w").close()


def train_func(config):
    model = torch.nn.Linear(2, 1)
    start = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            saved = torch.load(os.path.join(checkpoint_dir, "checkpoint.pt"), weights_only=True)
        model.load_state_dict(saved["model"])
        start = saved["epoch"] + 1
    for epoch in range(start, config["epochs"]):
        if epoch == 2 and os.path.exists(config["broken"]):
            raise RuntimeError("the disk is full")
        with tempfile.TemporaryDirectory() as temp_dir:
            torch.save({"model": model.state_dict(), "epoch": epoch}, os.path.join(temp_dir, "checkpoint.pt"))
            train.report({"epoch": epoch, "start": start}, checkpoint=Checkpoint.from_directory(temp_dir))


trainer = TorchTrainer(
    train_func,
    train_loop_config={"epochs": 4, "broken": BROKEN},
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(name="restored", storage_path=STORAGE, failure_config=FailureConfig(max_failures=0)),
)
try:
    trainer.fit()
except TrainingFailedError as error:
    print("failed:", type(error).__name__)
else:
    raise AssertionError("the run should have failed")

os.remove(BROKEN)
path = os.path.join(STORAGE, "restored")
assert TorchTrainer.can_restore(path)
assert not TorchTrainer.can_restore(os.path.join(STORAGE, "nothing"))
restored_trainer = TorchTrainer.restore(path, train_loop_per_worker=train_func)
result = restored_trainer.fit()
assert list(result.metrics_dataframe["epoch"]) == [0, 1, 2, 3]
assert os.path.dirname(result.path) == path
print("started again at:", result.metrics["start"], "ended at:", result.metrics["epoch"])
