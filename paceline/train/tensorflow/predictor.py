"""TensorflowPredictor: predictions of a Keras model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from paceline.air.errors import ConfigError
from paceline.train.prediction.tensor_predictor import TensorPredictor, one_or_all
from paceline.train.predictor import checked_checkpoint
from paceline.train.tensorflow.checkpoint import TensorflowCheckpoint
from paceline.train.tensorflow.keras_files import keras_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import tensorflow as tf
    from numpy.typing import NDArray

    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import CheckpointOrPlace

    Inputs: TypeAlias = tf.Tensor | dict[str, tf.Tensor]


class TensorflowPredictor(TensorPredictor):
    """Gives batches to a model as tensors.

    An array or a single column is one tensor, with a row of the data per row; several columns are a dict of tensors
    by name, as a model with named inputs takes them. To have them in one tensor, use Concatenator as preprocessor.
    The model returns a tensor, which is the column "predictions", or a dict of tensors, one column each.
    """

    def __init__(
        self,
        *,
        model: tf.keras.Model | Callable[[], tf.keras.Model] | None = None,
        preprocessor: Preprocessor | None = None,
        use_gpu: bool = False,
    ) -> None:
        """`model` may be a function that builds the model. With `use_gpu`, the first GPU predicts."""
        super().__init__(preprocessor)
        self.use_gpu = use_gpu
        self._device = _device(use_gpu)
        self.model = _made(model, self._device)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: CheckpointOrPlace,
        model_definition: tf.keras.Model | Callable[[], tf.keras.Model] | None = None,
        use_gpu: bool = False,
        *,
        custom_objects: Mapping[str, Any] | None = None,
        safe_mode: bool = True,
    ) -> Self:
        """From a TensorflowCheckpoint, its path or its URI.

        Where that holds weights only, they are loaded into what `model_definition` builds, which must be given.
        `custom_objects` and `safe_mode` are those of `TensorflowCheckpoint.get_model`.
        """
        import tensorflow as tf

        checkpoint = checked_checkpoint(checkpoint, f"{cls.__name__}.from_checkpoint")
        held = TensorflowCheckpoint.from_checkpoint(checkpoint)
        with tf.device(_device(use_gpu)):
            model = held.get_model(model_definition, custom_objects=custom_objects, compile=False, safe_mode=safe_mode)
        return cls(model=model, preprocessor=held.get_preprocessor(), use_gpu=use_gpu)

    def _inputs(self, chunk: pa.RecordBatch, dtype: Any) -> Inputs:
        from paceline.data.tf_batches import tf_columns

        return one_or_all(tf_columns(chunk, dtype))

    def _outputs(self, chunk: pa.RecordBatch, dtype: Any) -> dict[str, NDArray[np.generic]]:
        import tensorflow as tf

        with tf.device(self._device):
            return super()._outputs(chunk, dtype)

    def _is_tensor(self, value: Any) -> bool:
        import tensorflow as tf

        return tf.is_tensor(value) and hasattr(value, "numpy")

    def _to_numpy(self, tensor: tf.Tensor) -> NDArray[Any]:
        import tensorflow as tf

        array: NDArray[Any] = (tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor).numpy()
        return array


def _device(use_gpu: bool) -> str:
    import tensorflow as tf

    if use_gpu and not tf.config.list_logical_devices("GPU"):
        raise ConfigError("use_gpu=True, but TensorFlow sees no GPU here. Leave it out to predict on the CPU.")
    return "/GPU:0" if use_gpu else "/CPU:0"


def _made(model: Any, device: str) -> Callable[..., Any]:
    """What is called with the tensors of a batch."""
    import tensorflow as tf

    if callable(model) and keras_of(model) is None:
        with tf.device(device):
            model = model()
    if not hasattr(model, "signatures") and keras_of(model) is None:
        raise ConfigError(
            "TensorflowPredictor takes a Keras model, or a function that builds one, as its model, not "
            f"{type(model).__name__}."
        )
    if callable(model):
        made: Callable[..., Any] = model
        return made
    return _endpoint(model)


def _endpoint(saved: Any) -> Callable[..., Any]:
    """A SavedModel that holds no Keras model is called by the function it was exported for."""
    if hasattr(saved, "serve"):
        return lambda inputs: saved.serve(inputs)  # saved itself must stay: its functions hold no variables
    if "serving_default" not in saved.signatures:
        raise ConfigError(
            "The SavedModel has no function to predict with: neither 'serve' nor the signature 'serving_default'. "
            "Export it with model.export()."
        )

    def call(inputs: Any) -> Any:
        signature = saved.signatures["serving_default"]
        if not isinstance(inputs, Mapping):
            (name,) = signature.structured_input_signature[1]
            inputs = {name: inputs}
        return signature(**inputs)

    return call
