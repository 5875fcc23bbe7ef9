"""A small training in each framework, as the backend contract wants it; workers import this module.

Every training fits the same line y = x @ WEIGHTS, on rows that differ from rank to rank.
"""

from __future__ import annotations

import functools
from typing import Any

from paceline.air import Checkpoint, session
from paceline.testing.backend_lesson import Lesson

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


def torch_line() -> Any:
    """The same weights in every run, so that runs can be compared."""
    import torch

    torch.manual_seed(1)
    return torch.nn.Linear(len(WEIGHTS), 1)


def torch_training(config: dict[str, Any]) -> None:
    import torch

    from paceline.train.torch import prepare_model

    lesson: Lesson = config["lesson"]
    done, weights = saved()
    linear = torch_line()
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


# -- Accelerate ---------------------------------------------------------------------------


def accelerate_sum(number: float) -> float:
    import torch
    from accelerate import Accelerator

    return float(Accelerator().reduce(torch.tensor(number), "sum"))


def accelerate_training(config: dict[str, Any]) -> None:
    import torch
    from accelerate import Accelerator

    lesson: Lesson = config["lesson"]
    done, weights = saved()
    accelerator = Accelerator()
    linear = torch_line()
    if weights is not None:
        linear.load_state_dict(weights)
    model, optimizer = accelerator.prepare(linear, torch.optim.SGD(linear.parameters(), lr=LEARNING_RATE))
    features, labels = torch_rows()
    lesson.begin(done)
    for epoch in range(done + 1, lesson.epochs + 1):
        lesson.before_epoch(epoch)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(features), labels)
        accelerator.backward(loss)
        optimizer.step()
        state = accelerator.unwrap_model(model).state_dict()
        session.report({"loss": loss.item()}, checkpoint=checkpoint_of(epoch, state))
    lesson.end(torch.cat([each.detach().flatten() for each in linear.parameters()]).tolist())


# -- TensorFlow ---------------------------------------------------------------------------


@functools.cache
def strategy() -> Any:
    """One for the whole process: it starts TensorFlow's server."""
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()


def tensorflow_sum(number: float) -> float:
    import tensorflow as tf

    def add() -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(number))

    return float(strategy().run(add))


def numpy_rows() -> tuple[Any, Any]:
    import numpy as np

    features = np.random.default_rng(session.get_world_rank()).normal(size=(ROWS, len(WEIGHTS))).astype("f4")
    return features, features @ np.array(WEIGHTS, "f4")[:, None]


def tensorflow_training(config: dict[str, Any]) -> None:
    import numpy as np
    import tensorflow as tf

    from paceline.train.tensorflow import prepare_dataset_shard

    lesson: Lesson = config["lesson"]
    done, weights = saved()
    tf.keras.utils.set_random_seed(1)
    with strategy().scope():
        model = tf.keras.Sequential([tf.keras.Input((len(WEIGHTS),)), tf.keras.layers.Dense(1)])
        if weights is not None:
            model.set_weights(weights)
        model.compile(optimizer=tf.keras.optimizers.SGD(LEARNING_RATE), loss="mse")
    rows = prepare_dataset_shard(tf.data.Dataset.from_tensor_slices(numpy_rows()).batch(ROWS))
    lesson.begin(done)
    for epoch in range(done + 1, lesson.epochs + 1):
        lesson.before_epoch(epoch)
        (loss,) = model.fit(rows, verbose=0).history["loss"]
        session.report({"loss": loss}, checkpoint=checkpoint_of(epoch, model.get_weights()))
    lesson.end(np.concatenate([each.ravel() for each in model.get_weights()]).tolist())


# -- Horovod ------------------------------------------------------------------------------


def horovod_torch_sum(number: float) -> float:
    import horovod.torch as hvd
    import torch

    return float(hvd.allreduce(torch.tensor(number), op=hvd.Sum))


def horovod_torch_training(config: dict[str, Any]) -> None:
    import horovod.torch as hvd
    import torch

    hvd.init()
    lesson: Lesson = config["lesson"]
    done, weights = saved()
    model = torch_line()
    if weights is not None:
        model.load_state_dict(weights)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), named_parameters=model.named_parameters()
    )
    features, labels = torch_rows()
    lesson.begin(done)
    for epoch in range(done + 1, lesson.epochs + 1):
        lesson.before_epoch(epoch)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(features), labels)
        loss.backward()
        optimizer.step()
        session.report({"loss": loss.item()}, checkpoint=checkpoint_of(epoch, model.state_dict()))
    lesson.end(torch.cat([each.detach().flatten() for each in model.parameters()]).tolist())


def horovod_tensorflow_sum(number: float) -> float:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    return float(hvd.allreduce(tf.constant(number), op=hvd.Sum))


def horovod_tensorflow_training(config: dict[str, Any]) -> None:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    lesson: Lesson = config["lesson"]
    done, start = saved()
    tf.random.set_seed(1)
    weights = tf.Variable(tf.random.normal((len(WEIGHTS), 1)) if start is None else start)
    hvd.broadcast_variables([weights], root_rank=0)
    features, labels = map(tf.constant, numpy_rows())
    lesson.begin(done)
    for epoch in range(done + 1, lesson.epochs + 1):
        lesson.before_epoch(epoch)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((features @ weights - labels) ** 2)
        (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weights])
        weights.assign_sub(LEARNING_RATE * gradient)
        session.report({"loss": float(loss)}, checkpoint=checkpoint_of(epoch, weights.numpy()))
    lesson.end(weights.numpy().ravel().tolist())


# -- Transformers -------------------------------------------------------------------------


def transformers_trainer(train_dataset: Any, eval_dataset: Any, lesson: Lesson) -> Any:
    import torch
    import transformers

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch_line()

        def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": torch.nn.functional.mse_loss(self.linear(features), labels)}

    class FollowsLesson(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            lesson.begin(round(state.epoch or 0))

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            lesson.before_epoch(round(state.epoch or 0) + 1)

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
            lesson.end(torch.cat([each.detach().flatten() for each in model.parameters()]).tolist())

    arguments = transformers.TrainingArguments(
        "out",
        num_train_epochs=lesson.epochs,
        per_device_train_batch_size=ROWS,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        logging_strategy="epoch",
        save_strategy="epoch",
        use_cpu=True,
    )
    rows = [{"features": features, "labels": label} for features, label in zip(*torch_rows(), strict=True)]
    return transformers.Trainer(Line(), arguments, train_dataset=rows, callbacks=[FollowsLesson()])


# -- JAX ----------------------------------------------------------------------------------


def jax_sum(number: float) -> float:
    import jax
    import numpy as np

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("ranks",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("ranks"))
    numbers = jax.make_array_from_process_local_data(sharding, np.array([number], np.float32))
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return float(jax.jit(lambda values: values.sum(), out_shardings=replicated)(numbers))


def jax_training(config: dict[str, Any]) -> None:
    import jax
    import numpy as np

    lesson: Lesson = config["lesson"]
    done, saved_weights = saved()
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    over_rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    own = np.random.default_rng(session.get_world_rank()).normal(size=(ROWS, len(WEIGHTS))).astype(np.float32)
    features = jax.make_array_from_process_local_data(over_rows, own)
    labels = jax.make_array_from_process_local_data(over_rows, own @ np.array(WEIGHTS, np.float32))
    weights = np.zeros(len(WEIGHTS), np.float32) if saved_weights is None else saved_weights

    @jax.jit
    def step(weights: Any, features: Any, labels: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: ((features @ w - labels) ** 2).mean())(weights)
        return loss, weights - LEARNING_RATE * gradient

    lesson.begin(done)
    for epoch in range(done + 1, lesson.epochs + 1):
        lesson.before_epoch(epoch)
        loss, weights = step(weights, features, labels)
        session.report({"loss": float(loss)}, checkpoint=checkpoint_of(epoch, np.asarray(weights)))
    lesson.end(np.asarray(weights).tolist())
