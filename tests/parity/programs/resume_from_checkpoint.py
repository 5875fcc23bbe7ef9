"""Dict checkpoints: saved, converted, used to resume (Ray AIR 2.0 to 2.6)."""

import os
import tempfile

import ray
from ray.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, session
from ray.train.data_parallel_trainer import DataParallelTrainer

MARKER = os.path.join(tempfile.mkdtemp(), "failed-once")


def train_func(config):
    checkpoint = session.get_checkpoint()
    if checkpoint:
        state = checkpoint.to_dict()
        start, total = state["epoch"] + 1, state["total"]
        print(f"rank {session.get_world_rank()} of {session.get_trial_name()} starts at epoch {start}")
    else:
        start, total = 0, 0
    for epoch in range(start, config["epochs"]):
        total += epoch
        session.report(
            {"epoch": epoch, "total": total}, checkpoint=Checkpoint.from_dict({"epoch": epoch, "total": total})
        )
        if epoch == 1 and not os.path.exists(config["marker"]) and session.get_world_rank() == 1:
            open(config["marker"], "w").close()
            raise RuntimeError("this worker fails once")


def fit(epochs, resume=None):
    trainer = DataParallelTrainer(
        train_func,
        train_loop_config={"epochs": epochs, "marker": MARKER},
        scaling_config=ScalingConfig(num_workers=2, trainer_resources={"CPU": 0}, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="total", checkpoint_score_order="max"
            ),
        ),
        resume_from_checkpoint=resume,
    )
    return trainer.fit()


ray.init()
first = fit(4)
assert first.metrics["total"] == 6
assert [c.to_dict()["epoch"] for c, _ in first.best_checkpoints] in ([2, 3], [3, 2])

directory = first.checkpoint.to_directory()
again = Checkpoint.from_directory(directory)
assert again.to_dict()["total"] == 6
blob = again.to_bytes()
moved = Checkpoint.from_bytes(blob)
uri = moved.to_uri(f"file://{tempfile.mkdtemp()}/kept")
third = fit(6, resume=Checkpoint.from_uri(uri))
assert third.error is None
print("total:", third.metrics["total"], "iterations:", third.metrics["training_iteration"])
ray.shutdown()
