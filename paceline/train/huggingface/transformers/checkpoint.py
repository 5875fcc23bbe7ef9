"""TransformersCheckpoint: a model of Transformers with its tokenizer, as a checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.air import session
from paceline.air.constants import MODEL_KEY
from paceline.air.errors import CheckpointError, ConfigError
from paceline.air.temporary import temporary_directory
from paceline.train.model_checkpoint import ModelCheckpoint, ModelSource, file_names

if TYPE_CHECKING:
    import torch
    import transformers

    from paceline.air.packing import FileSink

FILES_FOLDER = "checkpoint"
"""Where ReportCallback puts the files of the trainer."""
_WEIGHTS = "model.safetensors"
_ANY_WEIGHTS = (
    *(_WEIGHTS, "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"),
    "adapter_model.safetensors",  # of PEFT
)
_TRAINING_ARGUMENTS = "training_args.bin"
_FROM_FILES_ALONE = {"local_files_only": True, "trust_remote_code": False}
"""Without these, Transformers asks on the terminal whether to run code that lies beside the model."""
_WEIGHTS_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack")
_STATE_OF_TRAINING = ("optimizer", "scheduler", "scaler", "rng_state", "global_step")
"""How the names of files begin that only a resumed training needs; they can be larger than the model."""

C = TypeVar("C", bound="TransformersCheckpoint")


@dataclass(frozen=True)
class ModelObject(ModelSource):
    """A model in this process; written in the format of Transformers, or of safetensors alone if it is another's."""

    model: torch.nn.Module
    tokenizer: Any

    def describe(self) -> str:
        return f"model {type(self.model).__name__}"

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        from transformers import PreTrainedModel

        with temporary_directory() as folder:
            if isinstance(self.model, PreTrainedModel):
                self.model.save_pretrained(folder)
            else:
                from safetensors.torch import save_model

                save_model(self.model, str(folder / _WEIGHTS))
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(folder)
            sink.add_directory(str(folder), move=True)

    def load_dict(self) -> dict[str, Any]:
        return {MODEL_KEY: self.model}


class TransformersCheckpoint(ModelCheckpoint):
    """A checkpoint that holds a model of Transformers: its weights, its configuration, maybe its tokenizer.

    Weights are written as safetensors: loading them runs no code. Checkpoints of a TransformersTrainer hold the
    whole state of the training beside that.
    """

    @classmethod
    def from_model(
        cls: type[C],
        model: transformers.PreTrainedModel | torch.nn.Module,
        tokenizer: transformers.PreTrainedTokenizerBase | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        preprocessor: Any = None,
    ) -> C:
        """A checkpoint of a model, and its tokenizer; with `path`, written to that directory at once."""
        import torch

        from paceline.train.torch.accelerator import unwrap

        if not isinstance(model, torch.nn.Module):
            raise ConfigError(f"from_model() takes a model of Transformers or torch, not {type(model).__name__}.")
        return cls._of(ModelObject(unwrap(model), tokenizer), preprocessor, path)

    def get_model(
        self,
        model: type[Any] | torch.nn.Module | None = None,
        **pretrained_model_kwargs: Any,
    ) -> Any:
        """The model: `model` is its class (or an Auto class), or an instance into which the weights are loaded.

        `pretrained_model_kwargs` are for the `from_pretrained` of the class.
        """
        import torch

        if model is None:
            raise ConfigError(
                "get_model() needs the class of the model, or a model to load the weights into: "
                "get_model(transformers.AutoModelForSequenceClassification), for example."
            )
        with self._directory(is_of_model) as folder:
            files = files_in(folder)
            if not any((files / name).exists() for name in _ANY_WEIGHTS):
                raise CheckpointError(
                    f"{self!r} holds no model of Transformers: it has no file {_WEIGHTS}; it has {file_names(files)}."
                )
            if isinstance(model, torch.nn.Module):
                return _with_weights(model, files)
            if not hasattr(model, "from_pretrained"):
                raise ConfigError(
                    f"get_model() takes a class of Transformers such as AutoModelForCausalLM, or a model to load the "
                    f"weights into, not {model!r}."
                )
            return model.from_pretrained(files, **{**_FROM_FILES_ALONE, **pretrained_model_kwargs})

    def get_tokenizer(self, tokenizer: type[Any] | None = None, **kwargs: Any) -> Any:
        """The tokenizer, by its class; None: AutoTokenizer. `kwargs` are for its `from_pretrained`."""
        if tokenizer is None:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer
        with self._directory(lambda name: not name.endswith(_WEIGHTS_ENDINGS)) as folder:
            files = files_in(folder)
            if not has_tokenizer(files):
                raise CheckpointError(
                    f"{self!r} holds no tokenizer. Give it to the trainer (processing_class=tokenizer), or to "
                    "TransformersCheckpoint.from_model()."
                )
            return tokenizer.from_pretrained(files, **{**_FROM_FILES_ALONE, **kwargs})

    def get_training_arguments(self) -> transformers.TrainingArguments:
        """The TrainingArguments of the training that it comes from.

        They are stored by pickle. Only settings of Transformers and Accelerate are taken from it, as they are stored:
        anything else is refused, and nothing that the file names is called.
        """
        from paceline.train.huggingface.transformers.training_arguments import read_training_arguments

        with self._directory(lambda name: name.endswith(_TRAINING_ARGUMENTS)) as folder:
            path = files_in(folder) / _TRAINING_ARGUMENTS
            if not path.exists():
                raise CheckpointError(f"{self!r} has no {_TRAINING_ARGUMENTS}: only checkpoints of a trainer do.")
            return read_training_arguments(path)


def is_of_model(name: str) -> bool:
    """Whether a file of a checkpoint may be read to load its model or tokenizer."""
    return not name.removeprefix(f"{FILES_FOLDER}/").startswith(_STATE_OF_TRAINING)


def files_in(folder: str | os.PathLike[str]) -> Path:
    """Where the trainer's files are in a checkpoint's directory."""
    below = Path(folder, FILES_FOLDER)
    return below if below.is_dir() else Path(folder)


def has_tokenizer(files: Path) -> bool:
    """There are files of a tokenizer; those of older kinds have a vocabulary only."""
    return any(files.glob("tokenizer*")) or any(files.glob("vocab*"))


def _with_weights(model: torch.nn.Module, files: Path) -> torch.nn.Module:
    """The model with the weights of a checkpoint; those that the two do not share are told."""
    from transformers import PreTrainedModel

    from paceline.train.torch.accelerator import unwrap

    bare = unwrap(model)
    if isinstance(bare, PreTrainedModel):
        weights = type(bare).from_pretrained(files, config=bare.config, local_files_only=True).state_dict()
        bare.load_state_dict(weights)
    else:
        from safetensors.torch import load_model

        if not (files / _WEIGHTS).exists():
            raise CheckpointError(
                f"The weights in {files} are not in one file {_WEIGHTS}, so they cannot be loaded into a "
                f"{type(bare).__name__}: pass the class of the model, which knows how to read them."
            )
        load_model(bare, str(files / _WEIGHTS))
    return model


def saved_checkpoint(args: transformers.TrainingArguments, state: transformers.TrainerState) -> Path:
    """What was saved at this step; every rank calls it.

    Ranks save to directories of their own, and only rank 0's is kept: the state of the random numbers of all
    ranks is brought there, so that a training goes on exactly.
    """
    folder = Path(args.output_dir or ".", f"checkpoint-{state.global_step}")
    folder.mkdir(parents=True, exist_ok=True)
    if args.world_size > 1 and not args.save_only_model:
        _collect_random_states(folder, args.process_index, args.world_size)
    if args.world_size > 1:
        import torch.distributed as dist

        dist.barrier()  # an output_dir may be that of all ranks: nobody reads it while another one writes
    return folder


def check_that_all_is_kept() -> None:
    """Where each rank saves its own part of a model, the files of rank 0 alone are no checkpoint."""
    from accelerate.state import AcceleratorState

    active = session.active()
    if active.world_size == 1 or active.keeps_all_ranks:
        return
    state = AcceleratorState()  # that of the trainer's Accelerator
    fsdp = getattr(state, "fsdp_plugin", None)
    by_fsdp = fsdp is not None and "FULL_STATE_DICT" not in str(fsdp.state_dict_type)
    if by_fsdp or getattr(state, "deepspeed_plugin", None) is not None:
        kind = "FSDP with a sharded state" if by_fsdp else "DeepSpeed"
        raise ConfigError(
            f"{kind}: every worker saves a part of the model and of the optimizer, and only the files of rank 0 would "
            "be kept. Use RunConfig(checkpoint_config=CheckpointConfig(keep_all_ranks=True))."
        )


def _collect_random_states(folder: Path, rank: int, workers: int) -> None:
    import torch.distributed as dist

    own = folder / f"rng_state_{rank}.pth"
    content = own.read_bytes() if own.exists() else None
    everyones: list[bytes | None] | None = [None] * workers if rank == 0 else None
    dist.gather_object(content, everyones, dst=0)
    for other, received in enumerate(everyones or []):
        if received is not None and other != rank:
            (folder / f"rng_state_{other}.pth").write_bytes(received)
