"""FSDP2 for prepare_model: which parts of a model are sharded on their own, and models that fit on no single worker."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
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
    for layer in (*_layers(model), model):
        _give_memory(layer, device)
        fully_shard(layer, mesh=mesh, **options)
    return model


def shard_by(shard: Shard, model: Module, device: torch.device, options: dict[str, Any]) -> Module:
    """Let the user's function shard the model."""
    mesh = options.pop("mesh", None) or mesh_of_all(device)
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
    return model


def mesh_of_all(device: torch.device) -> DeviceMesh:
    """All workers in one row."""
    return init_device_mesh(device.type, (dist.get_world_size(),))


def _name(shard: Shard) -> str:
    return getattr(shard, "__name__", repr(shard))


def _layers(model: Module) -> Iterator[Module]:
    """The members of each list or sequence of modules that have parameters; inner ones come first."""
    seen: set[Module] = set()
    for container in reversed([each for each in model.modules() if isinstance(each, ModuleList | Sequential)]):
        for layer in container:
            plain = not isinstance(layer, ModuleList)  # it has no forward()
            if plain and layer not in seen and any(True for _ in layer.parameters()):
                seen.add(layer)
                yield layer


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


def _give_memory(layer: Module, device: torch.device) -> None:
    """Initialise the modules on the meta device, as their constructors would have.

    Each worker initialises whole layers, one after the other, so that the number of workers changes no value.
    """
    for module in reversed(list(layer.modules())):
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if not any(tensor.is_meta for tensor in own):
            continue
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if reset is None:
            raise ConfigError(
                f"prepare_model(parallel_strategy='fsdp2'): {type(module).__name__} has parameters or buffers on the "
                "meta device and no method reset_parameters() that initialises them. Write one."
            )
        module.to_empty(device=device, recurse=False)
        with torch.no_grad():
            reset()
