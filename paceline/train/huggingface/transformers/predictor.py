"""TransformersPredictor: predictions of a pipeline of Transformers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

from paceline.air.errors import ConfigError, DataError
from paceline.train.huggingface.transformers.checkpoint import (
    TransformersCheckpoint,
    files_in,
    has_tokenizer,
    is_of_model,
)
from paceline.train.predictor import PREDICTIONS, Predictor, checked_checkpoint, chosen_columns

if TYPE_CHECKING:
    import pandas as pd
    import transformers

    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import CheckpointOrPlace


class TransformersPredictor(Predictor):
    """Gives rows to a pipeline.

    One column is given as a list of its values (texts, for most pipelines), several as a list of dicts. A pipeline
    that answers a row with a dict gives a column per item ("generated_text", "label", "score", ...); one
    that answers with a list of several gives the column "predictions".
    """

    default_batch_size: ClassVar[int] = 64
    """A pipeline holds all answers of a batch at once, and these can be long texts."""

    def __init__(
        self,
        pipeline: Any = None,
        preprocessor: Preprocessor | None = None,
        use_gpu: bool = False,
    ) -> None:
        """With `use_gpu`, the pipeline is moved to the first GPU."""
        import torch

        if not callable(pipeline):
            raise ConfigError(
                f"TransformersPredictor takes a pipeline of Transformers, not {pipeline!r}: make one with "
                "transformers.pipeline(), or use TransformersPredictor.from_checkpoint()."
            )
        if use_gpu and not torch.cuda.is_available():
            raise ConfigError("use_gpu=True, but PyTorch sees no GPU here. Leave it out to predict on the CPU.")
        super().__init__(preprocessor)
        self.pipeline = pipeline
        self.use_gpu = use_gpu
        if use_gpu:
            pipeline.device = torch.device("cuda", 0)
            pipeline.model.to(pipeline.device)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: CheckpointOrPlace,
        *,
        pipeline_cls: type[transformers.Pipeline] | None = None,
        model_cls: type[transformers.PreTrainedModel] | None = None,
        pretrained_model_kwargs: Mapping[str, Any] | None = None,
        use_gpu: bool = False,
        **pipeline_kwargs: Any,
    ) -> Self:
        """With the model, the tokenizer and the preprocessor of a checkpoint, which may be its path or URI.

        `task="text-generation"` or the like says what pipeline to make; or give its class as `pipeline_cls`, with the
        class of the model as `model_cls`. Other keywords are for the pipeline; among them may be a
        `tokenizer`, where the checkpoint has none.
        """
        import transformers

        checkpoint = checked_checkpoint(checkpoint, f"{cls.__name__}.from_checkpoint")
        saved = TransformersCheckpoint.from_checkpoint(checkpoint)
        if pipeline_cls is None and "task" not in pipeline_kwargs:
            raise ConfigError(
                f"{cls.__name__}.from_checkpoint() must know what the model is for: pass task='text-generation', "
                "'text-classification' or another task of transformers.pipeline(); or pipeline_cls and model_cls."
            )
        if pipeline_cls is not None and model_cls is None:
            raise ConfigError(
                f"{cls.__name__}.from_checkpoint(pipeline_cls={pipeline_cls.__name__}) needs the class of the model, "
                "too: model_cls=AutoModelForCausalLM, for example."
            )
        with saved._directory(is_of_model) as folder:
            local = TransformersCheckpoint.from_directory(folder)
            files = files_in(folder)
            options = dict(pretrained_model_kwargs or {})
            model = str(files) if model_cls is None else local.get_model(model_cls, **options)
            if model_cls is not None and has_tokenizer(files):
                pipeline_kwargs.setdefault("tokenizer", local.get_tokenizer())
            if model_cls is None and options:
                pipeline_kwargs.setdefault("model_kwargs", options)
            make: Any = transformers.pipeline if pipeline_cls is None else pipeline_cls
            if pipeline_cls is None:  # not told, it asks on the terminal whether to run code of the checkpoint
                pipeline_kwargs.setdefault("trust_remote_code", False)
            pipeline = make(model=model, **{"device": 0 if use_gpu else "cpu", **pipeline_kwargs})
        return cls(pipeline, saved.get_preprocessor(), use_gpu)

    def predict(self, data: Any, feature_columns: Sequence[str] | None = None, **kwargs: Any) -> Any:
        """What the pipeline says about each row of `data`; kinds of data as for every predictor.

        `feature_columns`: the columns to give to it; None: all. `kwargs` are for the call of the pipeline, for
        example max_new_tokens=20.
        """
        return super().predict(data, feature_columns=feature_columns, **kwargs)

    def _predict_pandas(
        self, data: pd.DataFrame, feature_columns: Sequence[str] | None = None, **kwargs: Any
    ) -> pd.DataFrame:
        import pandas as pd

        chosen = data if feature_columns is None else data[chosen_columns(feature_columns, data.columns)]
        inputs: list[Any]
        if chosen.shape[1] == 1:
            inputs = chosen.iloc[:, 0].tolist()
        else:
            inputs = chosen.to_dict("records")
        with _variable_as_before("TOKENIZERS_PARALLELISM"):
            answers = [_single(answer) for answer in self.pipeline(inputs, **kwargs)]
        if len(answers) != len(data):
            raise DataError(f"The pipeline gave {len(answers)} answers to {len(data)} rows.")
        if answers and all(isinstance(answer, Mapping) for answer in answers):
            return pd.DataFrame(answers, index=data.index).rename(columns=str)
        return pd.DataFrame({PREDICTIONS: pd.Series(answers, index=data.index, dtype=object)})


@contextmanager
def _variable_as_before(name: str) -> Iterator[None]:
    """A pipeline turns the threads of tokenizers off in this variable, and would leave it so for the whole process."""
    before = os.environ.get(name)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)


def _single(answer: Any) -> Any:
    """Some pipelines answer each row with a list of one."""
    return answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
