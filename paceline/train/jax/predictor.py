"""JaxPredictor: predictions of a function of parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from paceline.air.errors import ConfigError
from paceline.train.jax.checkpoint import JaxCheckpoint
from paceline.train.prediction.tensor_predictor import TensorPredictor, one_or_all
from paceline.train.predictor import checked_checkpoint

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import CheckpointOrPlace

PARAMETERS_KEY = "params"


class JaxPredictor(TensorPredictor):
    """Calls a function of parameters and inputs, compiled by `jax.jit`, with batches as arrays.

    An array or a single column is one array, with a row of the data per row; several columns are a dict of arrays by
    name. The function returns an array, which is the column "predictions", or a dict of arrays, one column each.
    Each row must be predicted by itself: batches are filled up to a power of two, so that few sizes are compiled.
    """

    _shown = ("apply", "use_gpu")

    def __init__(
        self,
        apply: Callable[[Any, Any], Any],
        params: Any,
        preprocessor: Preprocessor | None = None,
        use_gpu: bool = False,
    ) -> None:
        """`apply(params, inputs)` predicts a batch, like the `apply` of a Flax module. With `use_gpu`, on the first
        GPU."""
        import jax

        if not callable(apply):
            raise ConfigError(
                f"JaxPredictor takes a function apply(params, inputs), such as model.apply, not {type(apply).__name__}."
            )
        super().__init__(preprocessor)
        self.apply, self.use_gpu = apply, use_gpu
        self._device = _device(use_gpu)
        self.params = jax.device_put(params, self._device)
        self.model = jax.jit(apply)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: CheckpointOrPlace,
        apply: Callable[[Any, Any], Any] | None = None,
        use_gpu: bool = False,
        *,
        params: Callable[[Any], Any] | None = None,
    ) -> Self:
        """From a JaxCheckpoint, its path or its URI. A checkpoint holds no code, so `apply` must be given.

        `params` takes the parameters out of the state; without it they are what the state has under "params", or else
        all of it.
        """
        if apply is None:
            raise ConfigError(
                f"{cls.__name__}.from_checkpoint() needs the function that predicts, because a checkpoint holds no "
                "code: pass apply=model.apply, or a function of (params, inputs)."
            )
        checkpoint = checked_checkpoint(checkpoint, f"{cls.__name__}.from_checkpoint")
        held = JaxCheckpoint.from_checkpoint(checkpoint)
        state = held.get_state()
        if params is not None:
            state = params(state)
        elif isinstance(state, Mapping) and PARAMETERS_KEY in state:
            state = state[PARAMETERS_KEY]
        return cls(apply, state, held.get_preprocessor(), use_gpu)

    def call_model(self, inputs: Any) -> Any:
        return self.model(self.params, inputs)

    def _inputs(self, chunk: pa.RecordBatch, dtype: Any) -> Any:
        import jax

        from paceline.data.jax_batches import jax_values

        rows = chunk.num_rows
        filled = 1 << max(rows - 1, 0).bit_length()
        columns = jax_values(chunk, dtype)
        return one_or_all(
            {name: jax.device_put(_filled(values, filled), self._device) for name, values in columns.items()}
        )

    def _outputs(self, chunk: pa.RecordBatch, dtype: Any) -> dict[str, NDArray[np.generic]]:
        outputs = super()._outputs(chunk, dtype)
        filled = 1 << max(chunk.num_rows - 1, 0).bit_length()
        return {name: values[: chunk.num_rows] if len(values) == filled else values for name, values in outputs.items()}

    def _is_tensor(self, value: Any) -> bool:
        import jax

        return isinstance(value, jax.Array) and value.ndim > 0

    def _to_numpy(self, tensor: Any) -> NDArray[Any]:
        import numpy as np

        values = np.asarray(tensor)
        return values if values.dtype.kind in "biufc" else values.astype(np.float32)


def _filled(values: NDArray[Any], rows: int) -> NDArray[Any]:
    """With copies of the last row, up to so many."""
    import numpy as np

    missing = rows - len(values)
    if not missing or not len(values):
        return values
    return np.concatenate([values, np.repeat(values[-1:], missing, axis=0)])


def _device(use_gpu: bool) -> Any:
    import jax

    try:
        return jax.devices("gpu" if use_gpu else "cpu")[0]
    except RuntimeError as error:
        raise ConfigError("use_gpu=True, but JAX sees no GPU here. Leave it out to predict on the CPU.") from error
