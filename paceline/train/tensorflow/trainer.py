"""TensorflowTrainer: a data-parallel trainer whose workers find each other through TF_CONFIG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from paceline.train.arguments import DataParallelArguments, chosen_config
from paceline.train.data_parallel_trainer import DataParallelTrainer
from paceline.train.tensorflow.backend import TensorflowConfig
from paceline.train.tensorflow.loop import TensorflowFunction

if TYPE_CHECKING:
    from paceline.run.spec import RunSpec


class TensorflowTrainer(DataParallelTrainer):
    """Runs `train_loop_per_worker` on every worker, with TF_CONFIG set for tf.distribute.

    Make the model within a MultiWorkerMirroredStrategy, and train it with `fit` or with a loop of your own.

        def train_func(config):
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
            with strategy.scope():
                model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
                model.compile(optimizer="sgd", loss="mse")
            model.fit(x, y, callbacks=[ReportCheckpointCallback()])

        result = TensorflowTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()

    Where tf_keras is installed, it is `tf.keras` in the workers: Keras 3 cannot `fit` on several of them.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        tensorflow_config: TensorflowConfig | None = None,
        tensorflow_backend: TensorflowConfig | None = None,
        **common: Unpack[DataParallelArguments],
    ) -> None:
        chosen = chosen_config(
            "TensorflowTrainer",
            TensorflowConfig,
            tensorflow_config=tensorflow_config,
            tensorflow_backend=tensorflow_backend,
        )
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=chosen,
            **common,
        )

    def to_run_spec(self) -> RunSpec:
        function = TensorflowFunction(self.train_loop_per_worker, self.train_loop_config, self._takes_config)
        return replace(super().to_run_spec(), train=function)
