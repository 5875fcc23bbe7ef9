"""The parts of a memory estimate: a model's tensors, its optimizer's state, and what DDP and FSDP2 make of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.air.errors import ConfigError
from paceline.engine.places import usable_memory
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
        self.layers: list[list[nn.Parameter]] = []
        """Parameters that FSDP2 gathers together, in the order of definition."""
        seen: set[int] = set()
        for layer in _layers(model, layers):
            self.layers.append(self._not_yet(layer.parameters(), seen))
        self.rest = self._not_yet(model.parameters(), seen)
        """Parameters outside of layers: FSDP2 gathers them for the whole step."""

    def embeddings(self) -> set[int]:
        """Ids of parameters that only embeddings use. Autocast makes no copies of them."""
        of_embeddings: set[int] = set()
        of_others: set[int] = set()
        for module in self.model.modules():
            target = of_embeddings if isinstance(module, nn.Embedding | nn.EmbeddingBag) else of_others
            target.update(id(self.of_original[id(each)]) for each in module.parameters(recurse=False))
        return of_embeddings - of_others

    def _not_yet(self, parameters: Iterable[nn.Parameter], seen: set[int]) -> list[nn.Parameter]:
        new = [each for each in parameters if id(each) not in seen]
        seen.update(map(id, new))
        return [self.of_original[id(each)] for each in new]


def _check_shape(name: str, parameter: nn.Parameter) -> None:
    if torch.nn.parameter.is_lazy(parameter):
        raise ConfigError(
            f"The parameter {name} has no shape before the first batch: it belongs to a lazy module. "
            "Call the model once before it is estimated, or give its sizes."
        )


def _empty(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    is_converted = dtype is not None and (tensor.is_floating_point() or tensor.is_complex())
    return torch.empty(tensor.shape, dtype=dtype if is_converted else tensor.dtype, device="meta")


def _layers(model: nn.Module, chosen: str | Sequence[str] | None) -> list[nn.Module]:
    """The modules that are sharded by themselves: outermost ones only, those with parameters."""
    if chosen is None:
        return []
    if chosen == "auto":
        return list(_elements(model))
    names = {chosen} if isinstance(chosen, str) else set(chosen)
    found = list(_instances(model, names))
    missing = names - {type(each).__name__ for each in model.modules()}
    if missing:
        raise ConfigError(f"{type(model).__name__} has no layers of class {', '.join(sorted(missing))}.")
    return found


def _elements(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        is_element = isinstance(module, nn.ModuleList | nn.Sequential)
        if is_element and not isinstance(child, nn.ModuleList) and any(True for _ in child.parameters()):
            yield child
        else:
            yield from _elements(child)


def _instances(module: nn.Module, names: set[str]) -> Iterator[nn.Module]:
    for child in module.children():
        if type(child).__name__ in names:
            yield child
        else:
            yield from _instances(child, names)


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
    padded = {id(each): _rows(each, world_size) * world_size * _row_size(each) for each in content.parameters}
    optimizer = sum(
        value.nbytes if parameter is None else _rows(parameter, world_size) * _row_size(parameter) * value.itemsize
        for value, parameter in states.tensors
    )
    shards = {each: padded[id(each)] // world_size * each.itemsize for each in content.parameters}
    return RankMemory(
        "fsdp2",
        world_size,
        parameters=sum(shards.values()),
        buffers=_size(content.buffers),
        gradients=sum(
            padded[id(each)] // world_size * each.itemsize for each in content.parameters if each.requires_grad
        ),
        optimizer=optimizer,
        working=_gathered(content, padded, cast),
    )


@dataclass(frozen=True)
class _Group:
    """What FSDP2 handles together: the elements of its padded parameters, and their gradients."""

    gathered: int
    """Its parameters in full; the buffer of the all-gather is as large."""
    gradients: int
    """In full, before they are reduced."""
    reduced: int
    """The buffer of the reduce-scatter."""


def _gathered(content: ModelContent, padded: dict[int, int], cast: torch.dtype | None) -> int:
    """The largest sum of full parameters, full gradients and buffers of collectives in a step.

    In the backward pass of a layer these exist: its parameters and gradients, the parameters of the next one, which are
    gathered ahead, and the gradients of the previous one, which are being reduced. Parameters that are not
    part of any layer are there all the time.
    """

    def group(parameters: list[nn.Parameter]) -> _Group:
        def bytes_in(each: nn.Parameter) -> int:
            return (cast if cast is not None and each.is_floating_point() else each.dtype).itemsize

        trainable = [each for each in parameters if each.requires_grad]
        return _Group(
            sum(padded[id(each)] * bytes_in(each) for each in parameters),
            sum(each.numel() * bytes_in(each) for each in trainable),
            sum(padded[id(each)] * each.itemsize for each in trainable),
        )

    rest = group(content.rest)
    nothing = _Group(0, 0, 0)
    groups = [nothing, *map(group, content.layers), nothing]
    peak = rest.gathered + max(rest.gathered, rest.gradients)
    peak = max(peak, rest.gradients + rest.reduced)
    before = rest
    for earlier, layer, later in zip(groups, groups[1:-1], groups[2:], strict=False):
        forward = layer.gathered + max(before.gathered, layer.gathered)
        ahead_and_behind = earlier.gathered + later.reduced
        # Its parameters are let go before the buffer for its gradients is made.
        backward = rest.gradients + ahead_and_behind + layer.gradients + max(layer.gathered, layer.reduced)
        peak = max(peak, rest.gathered + max(forward, backward))
        before = layer
    return peak


def _rows(parameter: torch.Tensor, world_size: int) -> int:
    """Of its largest shard."""
    return -(-parameter.shape[0] // world_size) if parameter.ndim else 1


def _row_size(parameter: torch.Tensor) -> int:
    """Elements for each index of the first dimension."""
    return parameter[0].numel() if parameter.ndim and parameter.shape[0] else 1


def _size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(each.nbytes for each in tensors)
