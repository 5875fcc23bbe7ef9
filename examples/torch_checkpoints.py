"""Save a checkpoint in every epoch, then start a second run from the last one."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from paceline.air import Checkpoint, Result, RunConfig, ScalingConfig, session
from paceline.train.torch import TorchTrainer, prepare_model


def train_func(config: dict[str, Any]) -> None:
    rows = torch.Tensor(np.random.normal(0, 1, size=(100, 4)))
    targets = torch.Tensor(np.random.uniform(0, 1, size=(100, 1)))
    model = nn.Linear(4, 1)
    start_epoch = 0

    # After a failure this is the newest checkpoint of the run; in a new run, the one it resumes from.
    checkpoint = session.get_checkpoint()
    if checkpoint:
        state = checkpoint.to_dict()
        model.load_state_dict(state["model_weights"])
        start_epoch = state["epoch"] + 1

    model = prepare_model(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    for epoch in range(start_epoch, config["num_epochs"]):
        loss = nn.functional.mse_loss(model(rows), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        # The weights of the model inside DistributedDataParallel.
        weights = model.state_dict()
        consume_prefix_in_state_dict_if_present(weights, "module.")
        session.report(
            {"epoch": epoch, "loss": loss.item()},
            checkpoint=Checkpoint.from_dict({"epoch": epoch, "model_weights": weights}),
        )


def fit(num_epochs: int, resume_from_checkpoint: Checkpoint | None = None) -> Result:
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"num_epochs": num_epochs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=1),
        resume_from_checkpoint=resume_from_checkpoint,
    )
    return trainer.fit()


if __name__ == "__main__":
    first = fit(num_epochs=2)
    second = fit(num_epochs=4, resume_from_checkpoint=first.checkpoint)
    assert second.checkpoint is not None
    state = second.checkpoint.to_dict()
    print(f"epoch {state['epoch']}, checkpoint id {state['_current_checkpoint_id']}")
    print(f"weights: {dict(state['model_weights'])}")
    print(f"on disk: {second.checkpoint.get_internal_representation()[1]}")
