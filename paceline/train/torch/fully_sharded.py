"""FSDP2 for prepare_model: which parts of a model are sharded on their own, and models that fit on no single worker."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import Module, ModuleList, Sequential

from paceline.air.errors import ConfigError

Shard = Callable[..., Any]
"""Applies fully_shard to the parts of a model: called with the model and the mesh."""


def shard_layers(model: Module, device: torch.device, options: dict[str, Any]) -> Module:
    """Shard each layer, and then the rest of the model.

    While a layer computes, each worker has all of that layer: the smaller the layers, the less memory that takes.
    """
    known = inspect.signature(fully_shard).parameters
    unknown = sorted(set(options) - set(known))
    if unknown:
        names = ", ".join(name for name in known if name != "module")
        raise ConfigError(
            f"prepare_model(parallel_strategy_kwargs={{{unknown[0]!r}: ...}}): fully_shard() has no such argument. It "
            f"takes {names}."
        )
    mesh = options.pop("mesh", None) or mesh_of_all(device)
    _refuse_ties_without_memory(model)
    layers = _layers(model)
    before = [weakref.ref(parameter) for parameter in model.parameters()]
    for module in _inner_first(model):
        _give_memory(module, device)
        if module in layers or module is model:
            fully_shard(module, mesh=mesh, **options)
    _refuse_optimizers_of(before)
    return model


def shard_by(shard: Shard, model: Module, device: torch.device, options: dict[str, Any]) -> Module:
    """Let the user's function shard the model."""
    mesh = options.pop("mesh", None) or mesh_of_all(device)
    before = [weakref.ref(parameter) for parameter in model.parameters()]
    found = shard(model, mesh, **options)
    model = model if found is None else found
    if not isinstance(model, Module):
        raise ConfigError(
            f"prepare_model(parallel_strategy={_name(shard)}): the function returned a {type(model).__name__}. Let it "
            "apply fully_shard to the model and return the model, or nothing."
        )
    without_memory = [name for name, tensor in model.named_parameters() if tensor.is_meta]
    if without_memory:
        raise ConfigError(
            f"prepare_model(parallel_strategy={_name(shard)}): {without_memory[0]!r} is still on the meta device. Call "
            'model.to_empty(device="cpu") and initialise the parameters in the function.'
        )
    if mesh.size() > 1 and not any(isinstance(each, DTensor) for each in model.parameters()):
        raise ConfigError(
            f"prepare_model(parallel_strategy={_name(shard)}): the function sharded nothing, so that each worker would "
            "train a model of its own. Let it apply fully_shard(..., mesh=mesh) to the model."
        )
    _refuse_optimizers_of(before)
    return model


def _refuse_optimizers_of(before: list[weakref.ref[torch.nn.Parameter]]) -> None:
    """Sharding replaces the parameters: an optimizer that holds the ones before would train nothing."""
    if all(reference() is None for reference in before):
        return
    replaced = {id(parameter) for reference in before if isinstance(parameter := reference(), torch.nn.Parameter)}
    for each in gc.get_objects():
        if issubclass(type(each), torch.optim.Optimizer) and any(
            id(parameter) in replaced and not isinstance(parameter, DTensor)
            for group in each.param_groups
            for parameter in group["params"]
        ):
            raise ConfigError(
                f"prepare_model() shards the model, which replaces its parameters, but an optimizer ("
                f"{type(each).__name__}) already holds the old ones and would train nothing. Make the optimizer after "
                "prepare_model()."
            )


def mesh_of_all(device: torch.device) -> DeviceMesh:
    """All workers in one row."""
    return init_device_mesh(device.type, (dist.get_world_size(),))


def _name(shard: Shard) -> str:
    return getattr(shard, "__name__", repr(shard))


def _layers(model: Module) -> set[Module]:
    """The members of each ModuleList, or, if there is none, of the outermost Sequential."""
    containers: list[Module] = [each for each in model.modules() if isinstance(each, ModuleList)]
    if not containers:
        containers += [each for each in model.modules() if isinstance(each, Sequential)][:1]
    members = {member for container in containers for member in container.children()}
    return {each for each in members if not isinstance(each, ModuleList) and any(True for _ in each.parameters())}


def _inner_first(module: Module) -> Iterator[Module]:
    """A module after those inside of it: in this order constructors initialise them."""
    seen: set[Module] = set()

    def visit(each: Module) -> Iterator[Module]:
        if each not in seen:
            seen.add(each)
            for child in each.children():
                yield from visit(child)
            yield each

    return visit(module)


# -- models on the meta device ---------------------------------------------------------------------


def _refuse_ties_without_memory(model: Module) -> None:
    """Each layer gets memory of its own, so that two layers would no longer share a parameter."""
    owners = Counter(
        id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False) if parameter.is_meta
    )
    for name, parameter in model.named_parameters():
        if owners[id(parameter)] > 1:
            raise ConfigError(
                f"prepare_model(parallel_strategy='fsdp2'): {name!r} is on the meta device, and several modules share "
                "it. Pass a function as parallel_strategy that gives the model memory, ties it, and shards it."
            )


def _give_memory(module: Module, device: torch.device) -> None:
    """Initialise what a module on the meta device has of its own, as its constructor would have.

    Each worker initialises whole layers, one after the other, so that the number of workers changes no value.
    """
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if not any(tensor.is_meta for tensor in own):
        return
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if reset is None:
        raise ConfigError(
            f"prepare_model(parallel_strategy='fsdp2'): {type(module).__name__} has parameters or buffers on the meta "
            "device and no method reset_parameters() that initialises them. Write one."
        )
    module.to_empty(device=device, recurse=False)
    with torch.no_grad():
        reset()
