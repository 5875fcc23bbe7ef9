"""The parts of a memory estimate: a model's tensors, its optimizer's state, and what DDP and FSDP2 make of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.air.errors import ConfigError
from paceline.engine.places import usable_memory
from paceline.train.torch.gathering import Part, Parts, PartSize, fullest
from paceline.train.torch.memory import RankMemory
from paceline.train.torch.meta_device import any_number

DTYPES = {
    **dict.fromkeys(("float32", "fp32", "float"), torch.float32),
    **dict.fromkeys(("bfloat16", "bf16"), torch.bfloat16),
    **dict.fromkeys(("float16", "fp16", "half"), torch.float16),
    **dict.fromkeys(("float64", "fp64", "double"), torch.float64),
}


def dtype_of(argument: str, named: str | torch.dtype | None) -> torch.dtype | None:
    if named is None or isinstance(named, torch.dtype):
        return named
    if named.lower() not in DTYPES:
        raise ConfigError(f"{argument}={named!r}: choose one of {', '.join(DTYPES)}.")
    return DTYPES[named.lower()]


def has_gpus() -> bool:
    return torch.cuda.is_available()


def default_memory(world_size: int) -> int | None:
    """What each of so many workers has on this machine: a GPU, or an equal part of the memory."""
    if has_gpus():
        return min(torch.cuda.get_device_properties(each).total_memory for each in range(torch.cuda.device_count()))
    usable = usable_memory()
    return usable // world_size if usable else None


class ModelContent:
    """The tensors of a model, as if it had been converted to `dtype`, without their data."""

    def __init__(self, model: nn.Module, dtype: torch.dtype | None, layers: str | Sequence[str] | None) -> None:
        self.model = model
        self.of_original: dict[int, nn.Parameter] = {}
        """The parameter on the meta device, by the id of the model's own."""
        self.notes: list[str] = []
        for name, parameter in model.named_parameters():
            _check_shape(name, parameter)
            self.of_original[id(parameter)] = nn.Parameter(_empty(parameter, dtype), parameter.requires_grad)
            if not parameter.ndim:
                self.notes.append(
                    f"FSDP2 cannot shard the parameter {name}, which is a single number: give it a shape."
                )
        self.parameters = list(self.of_original.values())
        self.buffers = [_empty(buffer, dtype) for buffer in model.buffers()]
        if not self.parameters:
            raise ConfigError(f"{type(model).__name__} has no parameters.")
        self.parts = Parts(model, layers)
        """What FSDP2 gathers at a time, with the model's own parameters."""

    def embeddings(self) -> set[int]:
        """Ids of parameters that only embeddings use. Autocast makes no copies of them."""
        of_embeddings: set[int] = set()
        of_others: set[int] = set()
        for module in self.model.modules():
            target = of_embeddings if isinstance(module, nn.Embedding | nn.EmbeddingBag) else of_others
            target.update(id(self.of_original[id(each)]) for each in module.parameters(recurse=False))
        return of_embeddings - of_others


def _check_shape(name: str, parameter: nn.Parameter) -> None:
    if torch.nn.parameter.is_lazy(parameter):
        raise ConfigError(
            f"The parameter {name} has no shape before the first batch: it belongs to a lazy module. "
            "Call the model once before it is estimated, or give its sizes."
        )


def _empty(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    is_converted = dtype is not None and (tensor.is_floating_point() or tensor.is_complex())
    return torch.empty(tensor.shape, dtype=dtype if is_converted else tensor.dtype, device="meta")


# -- the optimizer ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class OptimizerStates:
    name: str
    tensors: tuple[tuple[torch.Tensor, torch.Tensor | None], ...]
    """Each tensor of the state, with the parameter whose shape it has: it is sharded like that one."""
    notes: tuple[str, ...] = ()


def optimizer_states(
    content: ModelContent, optimizer: str | Optimizer | Callable[[list[nn.Parameter]], Optimizer]
) -> OptimizerStates:
    """What the optimizer keeps after its first step, which it takes on the meta device."""
    trainable = [each for each in content.parameters if each.requires_grad]
    if not trainable:
        return OptimizerStates("none", (), ("No parameter requires gradients, so there is no optimizer state.",))
    if isinstance(optimizer, Optimizer):
        stepping = _on_meta(optimizer, content)
    elif isinstance(optimizer, str):
        stepping = _named(optimizer, content.parameters)
    else:
        stepping = optimizer(content.parameters)
    name = type(stepping).__name__
    for parameter in trainable:
        parameter.grad = torch.empty_like(parameter)
    try:
        with any_number():
            stepping.step()
    except Exception as error:
        raise ConfigError(
            f"{name}.step() does not work without data, so its state is not known ({error}). Choose another optimizer "
            "for the estimate, such as 'adamw'."
        ) from error
    tensors = tuple(
        (value, parameter if value.shape == parameter.shape else None)
        for parameter, state in stepping.state.items()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
    if any(value.ndim and parameter is None for value, parameter in tensors):
        return OptimizerStates(
            name,
            tensors,
            (f"{name} keeps tensors of other shapes than its parameters': with FSDP2 each rank counts them in full.",),
        )
    return OptimizerStates(name, tensors)


def _named(name: str, parameters: list[nn.Parameter]) -> Optimizer:
    found = {key.lower(): each for key, each in vars(torch.optim).items() if _is_optimizer(each)}
    wanted = name.lower()
    if wanted == "sgd-momentum":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    if wanted not in found:
        raise ConfigError(f"optimizer={name!r}: choose one of {', '.join(sorted([*found, 'sgd-momentum']))}.")
    try:
        made: Optimizer = found[wanted](parameters, lr=0.1)
    except ValueError as error:  # Muon takes matrices only
        raise ConfigError(f"{found[wanted].__name__} does not take the parameters of this model: {error}.") from error
    return made


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer


def _on_meta(optimizer: Optimizer, content: ModelContent) -> Optimizer:
    """A copy of the user's optimizer, for the parameters on the meta device."""
    memo: dict[int, Any] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in content.of_original:
                raise ConfigError(f"The {type(optimizer).__name__} has parameters that are not the model's.")
            memo[id(parameter)] = content.of_original[id(parameter)]
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.ndim:
                memo[id(value)] = torch.empty_like(value, device="meta", dtype=value.dtype)
    copied: Optimizer = copy.deepcopy(optimizer, memo)
    return copied


# -- strategies ------------------------------------------------------------------------------------


def replicated(
    content: ModelContent,
    states: OptimizerStates,
    world_size: int,
    cast: torch.dtype | None,
    gradient_as_bucket_view: bool,
) -> RankMemory:
    """With DDP, or not wrapped if there is one worker."""
    trainable = [each for each in content.parameters if each.requires_grad]
    gradients = _size(trainable)
    working = gradients if world_size > 1 and not gradient_as_bucket_view else 0
    if cast is not None:
        # Autocast keeps the copies that it has made until the forward pass is over, and autograd until the backward is.
        without = content.embeddings()
        working += sum(
            each.numel() * cast.itemsize
            for each in trainable
            if each.dtype == torch.float32 and id(each) not in without
        )
    return RankMemory(
        "ddp",
        world_size,
        parameters=_size(content.parameters),
        buffers=_size(content.buffers),
        gradients=gradients,
        optimizer=_size(value for value, _ in states.tensors),
        working=working,
    )


def sharded(content: ModelContent, states: OptimizerStates, world_size: int, cast: torch.dtype | None) -> RankMemory:
    """With FSDP2: every parameter is cut along its first dimension, and shards are padded to equal sizes."""

    def shard(each: torch.Tensor) -> int:
        return _rows(each, world_size) * _row_size(each)

    def size_of(part: Part) -> PartSize:
        parameters = [content.of_original[id(each)] for each in part.parameters]
        trainable = [each for each in parameters if each.requires_grad]
        gathered = sum(shard(each) * world_size * _cast_size(each, cast) for each in parameters)
        gradients = sum(each.numel() * _cast_size(each, cast) for each in trainable)
        reduced = sum(shard(each) * each.itemsize for each in trainable)
        # Measured: gradients of another type than the sum's exist twice while they are reduced.
        twice = gradients if cast is not None and world_size > 1 else 0
        return PartSize(
            gathered=gathered,
            buffer=gathered if world_size > 1 else 0,
            gradients=gradients,
            reducing=reduced * world_size + reduced + twice,
            sent=reduced * world_size,
        )

    return RankMemory(
        "fsdp2",
        world_size,
        parameters=sum(shard(each) * each.itemsize for each in content.parameters),
        buffers=_size(content.buffers),
        gradients=sum(shard(each) * each.itemsize for each in content.parameters if each.requires_grad),
        optimizer=sum(
            value.nbytes if parameter is None else shard(parameter) * value.itemsize
            for value, parameter in states.tensors
        ),
        working=fullest(content.parts, {part: size_of(part) for part in content.parts.begun}),
    )


def _cast_size(tensor: torch.Tensor, cast: torch.dtype | None) -> int:
    """Bytes of one element while the model computes."""
    return cast.itemsize if cast is not None and tensor.is_floating_point() else tensor.itemsize


def _rows(parameter: torch.Tensor, world_size: int) -> int:
    """Of its largest shard."""
    return -(-parameter.shape[0] // world_size) if parameter.ndim else 1


def _row_size(parameter: torch.Tensor) -> int:
    """Elements for each index of the first dimension."""
    return parameter[0].numel() if parameter.ndim and parameter.shape[0] else 1


def _size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(each.nbytes for each in tensors)
