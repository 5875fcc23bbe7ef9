"""Hugging Face Accelerate: AccelerateTrainer, for train functions that use an Accelerator."""

from importlib.util import find_spec

if find_spec("accelerate") is None or find_spec("torch") is None:
    _missing = "torch" if find_spec("torch") is None else "accelerate"
    raise ImportError(
        f"paceline.train.huggingface.accelerate needs {_missing}: pip install 'paceline[huggingface]'", name=_missing
    )

from paceline.train.huggingface.accelerate.trainer import AccelerateTrainer

__all__ = ["AccelerateTrainer"]
