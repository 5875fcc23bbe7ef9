"""LightningPredictor: predictions of a LightningModule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from paceline.air.errors import ConfigError
from paceline.train.lightning.checkpoint import LightningCheckpoint
from paceline.train.predictor import checked_checkpoint
from paceline.train.torch.predictor import TorchPredictor

if TYPE_CHECKING:
    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import CheckpointOrPlace


class LightningPredictor(TorchPredictor):
    """Gives batches to the `forward` of a LightningModule, as TorchPredictor does to a model."""

    @classmethod
    def from_checkpoint(  # type: ignore[override]  # the weights need the module's class
        cls,
        checkpoint: CheckpointOrPlace,
        model_class: type[Any] | None = None,
        *,
        preprocessor: Preprocessor | None = None,
        use_gpu: bool = False,
        **load_from_checkpoint_kwargs: Any,
    ) -> Self:
        """From a LightningCheckpoint, its path or its URI; `preprocessor` replaces the one that it holds.

        Other arguments are those of `LightningCheckpoint.get_model`.
        """
        if model_class is None:
            raise ConfigError(
                f"{cls.__name__} needs the class of the LightningModule, which a checkpoint does not hold: pass "
                "model_class=MyModule."
            )
        checkpoint = checked_checkpoint(checkpoint, f"{cls.__name__}.from_checkpoint")
        saved = LightningCheckpoint.from_checkpoint(checkpoint)
        model = saved.get_model(model_class, **load_from_checkpoint_kwargs)
        return cls(model, saved.get_preprocessor() if preprocessor is None else preprocessor, use_gpu)
