"""TensorflowPredictor: predictions of a Keras model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from paceline.air.errors import ConfigError, DataError
from paceline.train.predictor import PREDICTIONS, Predictor, checked_checkpoint
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

_THE_ARRAY = "array"
"""What a bare array is called as a column."""


class TensorflowPredictor(Predictor):
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
    ) -> Self:
        """From a TensorflowCheckpoint, its path or its URI.

        Where that holds weights only, they are loaded into what `model_definition` builds, which must be given.
        """
        import tensorflow as tf

        checkpoint = checked_checkpoint(checkpoint, f"{cls.__name__}.from_checkpoint")
        held = TensorflowCheckpoint.from_checkpoint(checkpoint)
        with tf.device(_device(use_gpu)):
            model = held.get_model(model_definition, compile=False)
        return cls(model=model, preprocessor=held.get_preprocessor(), use_gpu=use_gpu)

    def predict(self, data: Any, dtype: Any = None, **kwargs: Any) -> Any:
        """What the model says about each row of `data`; kinds of data as for every predictor.

        `dtype`: the type of the tensors that the model gets, or a dict of types by column; None: as they are.
        """
        return super().predict(data, dtype=dtype, **kwargs)

    def call_model(self, inputs: Inputs) -> tf.Tensor | dict[str, tf.Tensor]:
        """What the model returns for a batch. For a model that is called in another way, or returns something else."""
        return self.model(inputs)

    def _predict_numpy(self, data: Any, dtype: Any = None) -> Any:
        from paceline.data.formats import from_batch

        if isinstance(data, Mapping):
            return self._outputs(from_batch(data, f"What {type(self).__name__} was given"), dtype)
        if isinstance(dtype, Mapping):
            raise ConfigError("dtype is a dict of types by column, but a bare array has no columns: give one type.")
        return self._outputs(from_batch({_THE_ARRAY: data}, f"What {type(self).__name__} was given"), dtype)

    def _predict_arrow(self, data: pa.Table, dtype: Any = None) -> Any:
        from paceline.data.formats import from_batch

        return self._outputs(from_batch(data, f"What {type(self).__name__} was given"), dtype)

    def _outputs(self, chunk: pa.RecordBatch, dtype: Any) -> dict[str, NDArray[np.generic]]:
        import tensorflow as tf

        from paceline.data.tf_batches import tf_columns

        with tf.device(self._device):
            tensors = tf_columns(chunk, dtype)
            inputs = next(iter(tensors.values())) if len(tensors) == 1 else tensors
            try:
                outputs = self.call_model(inputs)
            except Exception as error:
                raise DataError(_failure(error, inputs)) from error
        return self._columns(outputs)

    def _columns(self, outputs: Any) -> dict[str, NDArray[np.generic]]:
        """What the model returned, by column."""
        import tensorflow as tf

        if tf.is_tensor(outputs):
            outputs = {PREDICTIONS: outputs}
        if not isinstance(outputs, Mapping):
            raise DataError(
                f"The model returned a {type(outputs).__name__}, not a tensor or a dict of tensors. Derive a class "
                f"from {type(self).__name__} and override call_model(inputs) to take what is wanted out of it."
            )
        return {name: _to_numpy(values, name) for name, values in outputs.items()}


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


def _to_numpy(values: Any, name: str) -> NDArray[Any]:
    """A tensor that the model returned, as an array."""
    import tensorflow as tf

    if not tf.is_tensor(values) or not hasattr(values, "numpy"):
        raise DataError(
            f"The model returned a {type(values).__name__} as {name!r}: it must be a tensor with a row per row."
        )
    array: NDArray[Any] = (tf.cast(values, tf.float32) if values.dtype == tf.bfloat16 else values).numpy()
    return array


def _failure(error: Exception, inputs: Any) -> str:
    """What the model was called with is what explains most of its errors."""
    if isinstance(inputs, Mapping):
        shown = "{" + ", ".join(f"{name!r}: {_shape(tensor)}" for name, tensor in inputs.items()) + "}"
        hint = (
            " Leave out columns that are no inputs of the model. To give it one tensor of all columns, use "
            "Concatenator (paceline.data.preprocessors) as preprocessor."
        )
    else:
        shown, hint = _shape(inputs), " predict(data, dtype=...) gives it another type."
    reason = " ".join(str(error).split()).rstrip(".")
    return f"The model failed on {shown}: {type(error).__name__}: {reason}.{hint}"


def _shape(tensor: Any) -> str:
    return f"{tensor.dtype.name} tensor of shape {tuple(tensor.shape)}"
