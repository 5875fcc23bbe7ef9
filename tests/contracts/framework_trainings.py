"""A small training in each framework, as the backend contract wants it; workers import this module.

Every training fits the same line y = x @ WEIGHTS, on rows that differ from rank to rank.
"""

from __future__ import annotations

from typing import Any

from paceline.air import Checkpoint, session

WEIGHTS = (1.0, 2.0, 3.0, 4.0)
ROWS = 64
LEARNING_RATE = 0.1


def checkpoint_of(epoch: int, weights: Any) -> Checkpoint:
    return Checkpoint.from_dict({"epoch": epoch, "weights": weights})


def saved() -> tuple[int, Any]:
    """The epochs that are done, and the weights they led to."""
    checkpoint = session.get_checkpoint()
    if checkpoint is None:
        return 0, None
    content = checkpoint.to_dict()
    return content["epoch"], content["weights"]


# -- PyTorch ------------------------------------------------------------------------------


def torch_sum(number: float) -> float:
    import torch

    total = torch.tensor(number)
    torch.distributed.all_reduce(total)
    return float(total)


def torch_rows() -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(session.get_world_rank())
    features = torch.randn(ROWS, len(WEIGHTS), generator=generator)
    return features, features @ torch.tensor(WEIGHTS)[:, None]


def torch_training(config: dict[str, Any]) -> None:
    import torch

    from paceline.train.torch import prepare_model

    lesson = config["lesson"]
    done, weights = saved()
    linear = torch.nn.Linear(len(WEIGHTS), 1)
    if weights is not None:
        linear.load_state_dict(weights)
    model = prepare_model(linear)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    features, labels = torch_rows()
    lesson.begin(done)
    for epoch in range(done + 1, lesson.epochs + 1):
        lesson.before_epoch(epoch)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(features), labels)
        loss.backward()
        optimizer.step()
        session.report({"loss": loss.item()}, checkpoint=checkpoint_of(epoch, linear.state_dict()))
    lesson.end(torch.cat([each.detach().flatten() for each in linear.parameters()]).tolist())
