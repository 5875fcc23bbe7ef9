"""What each framework's workers train, on both sides: the same model, the same batches, timed inside the loop.

Every function takes the number of windows and gives steps per second: the median over windows of equal length, the
first of which warms up. A moment in which the machine does something else does not count.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.workload import BATCH, LAYERS, mlp, place

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WINDOW = 20
"""Steps in a window."""
WORDS, SENTENCE, SENTENCES = 128, 32, 8
"""Of the language model: vocabulary, tokens in a row, rows in a batch."""


FAILING = "BENCH_FAILING"
"""Set, it lets rank 1 fail in the middle of its peer's step."""
LAST_STEP = WINDOW + 5
RAISED_AT = "raised-at"


class Windows:
    """A clock that is told of every step."""

    def __init__(self) -> None:
        self._steps = 0
        self._marks: list[float] = []

    def step(self) -> None:
        if self._steps % WINDOW == 0:
            self._marks.append(time.perf_counter())
        self._steps += 1
        if self._steps == LAST_STEP and FAILING in os.environ:
            _fail_on_rank_1()

    def rate(self) -> float:
        seconds = [after - before for before, after in itertools.pairwise([*self._marks, time.perf_counter()])]
        return WINDOW / statistics.median(seconds[1:])


def _fail_on_rank_1() -> None:
    from paceline.air import session

    if session.get_world_rank() == 1:
        (place() / RAISED_AT).write_text(str(time.monotonic()))  # one clock for all processes
        raise ArithmeticError("rank 1 has had enough")


def images(rows: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    import numpy as np

    generator = np.random.default_rng(0)
    return generator.normal(size=(rows, LAYERS[0])).astype("f4"), generator.integers(LAYERS[-1], size=rows)


def sentences(rows: int) -> NDArray[np.int64]:
    import numpy as np

    return np.random.default_rng(0).integers(WORDS, size=(rows, SENTENCE))


def tensorflow(windows: int) -> float:
    """Keras's fit() under MultiWorkerMirroredStrategy: the workers find each other by TF_CONFIG."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    steps = WINDOW * (windows + 1)
    x, y = images(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    batches = tf.data.Dataset.from_tensors((x, y)).repeat(steps).with_options(options)
    with strategy.scope():
        hidden = [tf.keras.layers.Dense(width, activation="relu") for width in LAYERS[1:-1]]
        model = tf.keras.Sequential([tf.keras.Input((LAYERS[0],)), *hidden, tf.keras.layers.Dense(LAYERS[-1])])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.SGD(0.01), loss=loss)
    clock = Windows()
    told = tf.keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: clock.step())
    model.fit(batches, epochs=1, verbose=0, callbacks=[told])
    return clock.rate()


def jax(windows: int) -> float:
    """A step that is compiled for the devices of both processes, with Optax."""
    import jax
    import numpy as np
    import optax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if jax.process_count() != 2:
        raise RuntimeError(f"JAX sees {jax.process_count()} processes, not 2")
    mesh = Mesh(np.array(jax.devices()), ("data",))
    over_rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    x, y = (jax.make_array_from_process_local_data(over_rows, values) for values in images(BATCH))
    generator = np.random.default_rng(1)
    layers = [
        (generator.normal(size=shape).astype("f4") / shape[0] ** 0.5, np.zeros(shape[1], "f4"))
        for shape in itertools.pairwise(LAYERS)
    ]
    optimizer = optax.sgd(0.01)

    def loss_of(layers: Any, x: Any, y: Any) -> Any:
        for weights, bias in layers[:-1]:
            x = jax.nn.relu(x @ weights + bias)
        return optax.softmax_cross_entropy_with_integer_labels(x @ layers[-1][0] + layers[-1][1], y).mean()

    def step(layers: Any, moments: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(layers, x, y)
        updates, moments = optimizer.update(gradients, moments)
        return optax.apply_updates(layers, updates), moments, loss

    compiled = jax.jit(step)
    layers = jax.device_put(layers, everywhere)
    moments = optimizer.init(layers)
    clock = Windows()
    for _ in range(WINDOW * (windows + 1)):
        clock.step()
        layers, moments, loss = compiled(layers, moments, x, y)
        loss.block_until_ready()
    return clock.rate()


def torch(windows: int) -> float:
    """Plain DistributedDataParallel; the other rows of it are in throughput.py."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import SGD

    model = DistributedDataParallel(mlp())
    return _torch_steps(model, SGD(model.parameters(), lr=0.01), lambda loss: loss.backward(), windows)


def horovod(windows: int) -> float:
    """PyTorch with Horovod's optimizer."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return _torch_steps(model, optimizer, lambda loss: loss.backward(), windows)


def accelerate(windows: int) -> float:
    """A loop with an Accelerator in it."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    if accelerator.num_processes != 2:
        raise RuntimeError(f"the Accelerator sees {accelerator.num_processes} processes, not 2")
    model = mlp()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    return _torch_steps(model, optimizer, accelerator.backward, windows)


def _torch_steps(model: Any, optimizer: Any, backward: Callable[[Any], Any], windows: int) -> float:
    import torch

    x, y = (torch.from_numpy(values) for values in images(BATCH))
    lossf = torch.nn.CrossEntropyLoss()
    clock = Windows()
    for _ in range(WINDOW * (windows + 1)):
        clock.step()
        optimizer.zero_grad()
        backward(lossf(model(x), y))
        optimizer.step()
    return clock.rate()


def language_trainer(train_dataset: Any, windows: int, clock: Windows) -> Any:
    """A transformers.Trainer of a small causal language model. Its last log has the rate, which is that of `clock`."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.step()

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step >= state.max_steps:
                kwargs["logs"]["rate"] = clock.rate()

    shape = GPT2Config(
        vocab_size=WORDS, n_positions=SENTENCE, n_embd=128, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1
    )
    steps = WINDOW * (windows + 1)
    arguments = TrainingArguments(
        output_dir="language-model",
        max_steps=steps,
        per_device_train_batch_size=SENTENCES,
        logging_strategy="steps",
        logging_steps=steps,
        save_strategy="steps",
        save_steps=steps,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    return Trainer(model=GPT2LMHeadModel(shape), args=arguments, train_dataset=train_dataset, callbacks=[Clock()])


def language_rows(windows: int, workers: int = 2) -> int:
    """As many rows as the steps of all workers use."""
    return WINDOW * (windows + 1) * SENTENCES * workers


def lightning_module() -> type[Any]:
    """The class of the module that Lightning trains; made here so that only workers need Lightning."""
    import torch
    from lightning.pytorch import LightningModule

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = mlp()
            self.clock = Windows()

        def training_step(self, batch: Any, index: int) -> Any:
            self.clock.step()
            x, y = batch
            return torch.nn.functional.cross_entropy(self.model(x), y)

        def on_train_epoch_end(self) -> None:
            self.log("rate", self.clock.rate())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Classifier


def lightning_batches(windows: int) -> Any:
    """A loader of the batches of one worker; Lightning deals none of them away."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    x, y = (torch.from_numpy(values) for values in images(BATCH))

    class Same(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return itertools.repeat((x, y), WINDOW * (windows + 1))

    return DataLoader(Same(), batch_size=None)


LIGHTNING_SETTINGS: dict[str, Any] = {
    "max_epochs": 1,
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
