"""Sharded checkpoints: every rank saves its own part of a model, and loads what it needs, whoever has saved it.

`save_sharded` plans: all ranks tell rank 0 what they have, and learn what of it to write, and where. `report` has the
part written, straight into the checkpoint that is being staged. The driver commits it when the parts of all ranks are
there. `load_sharded` reads `.metadata`, finds out which files hold what this rank needs, and reads only those, after
comparing them with the checkpoint's manifest. Loading needs no communication between ranks.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from paceline.air.errors import CheckpointError, ConfigError
from paceline.train.predictor import checked_checkpoint
from paceline.train.torch.checkpoint import TorchCheckpoint
from paceline.train.torch.loading import load_plain
from paceline.train.torch.loop import Chosen, active_session, need_process_group

if TYPE_CHECKING:
    import torch

    from paceline.air.checkpoint import Checkpoint
    from paceline.train.predictor import CheckpointOrPlace

    Optimizers: TypeAlias = torch.optim.Optimizer | Iterable[torch.optim.Optimizer]

EXTRA_FILE = "extra.pt"
MODEL, OPTIMIZER = "model", "optimizer"
"""The first part of every name in the checkpoint."""
STATE = "state"
"""The second part, of what an optimizer knows of each parameter."""


def save_sharded(
    model: torch.nn.Module, optimizer: Optimizers | None = None, extra: Mapping[str, Any] | None = None
) -> TorchCheckpoint:
    """A checkpoint of which every rank writes its own part; every rank calls this, and reports what it gets.

    `extra` are plain values (and tensors) to continue with, such as the step; rank 0's are kept. The parts are written
    when the checkpoint is reported: report it before the model changes. With ``async_save``, report() only copies the
    part, and it is written in the background.
    """
    active = active_session("save_sharded")
    need_process_group("save_sharded")
    from paceline.train.torch.sharded_saving import plan_part

    content = {EXTRA_FILE: _encoded_extra(extra)}
    several = _several(optimizer)
    _refuse_other_parameters(model, several)
    new = [each for each in several if not each.state]
    with _plain_steps(several):
        state = _state(model, several)
    if new:
        _forget_first_step(state[OPTIMIZER], several, new)
    return TorchCheckpoint._of(plan_part(state, active.world_rank, active.world_size, content))


def load_sharded(
    checkpoint: CheckpointOrPlace,
    model: torch.nn.Module,
    optimizer: Optimizers | None = None,
    *,
    trust: bool = False,
) -> dict[str, Any]:
    """Load what `save_sharded` saved into the model and the optimizer, and return its `extra`.

    The number of ranks may differ from when the checkpoint was saved. Each rank reads only the files that hold
    something of its part. Loading runs no code that the checkpoint may contain; only with `trust` it is unpickled.
    """
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_state_dict

    from paceline.train.torch.sharded_reading import read_state, sharded_metadata

    source = checked_checkpoint(checkpoint, "load_sharded")
    metadata = sharded_metadata(source, trust)
    if metadata is None:
        raise CheckpointError(
            f"{source!r} is not a sharded checkpoint: save_sharded() makes them. For other checkpoints, use "
            "TorchCheckpoint.from_checkpoint(checkpoint).get_model(model)."
        )
    if optimizer is not None and not any(name.startswith(f"{OPTIMIZER}.") for name in metadata.state_dict_metadata):
        raise CheckpointError(f"{source!r} holds no optimizer: save it with save_sharded(model, optimizer).")
    several = _several(optimizer)
    _refuse_other_parameters(model, several)
    for each in several:  # PyTorch makes a state for every parameter only if there is none, nor a gradient
        each.zero_grad(set_to_none=True)
        each.state.clear()
    with _plain_steps(several):
        state = _state(model, several)
        _refuse_left_over(source, metadata.state_dict_metadata, state[MODEL])
        if not several:
            read_state(source, metadata, state, trust=trust)
            set_model_state_dict(model, state[MODEL])
        else:
            steps = state[OPTIMIZER][STATE]
            stored = metadata.state_dict_metadata
            saved = {
                name: step
                for name, step in steps.items()
                if any(f"{OPTIMIZER}.{STATE}.{name}.{key}" in stored for key in step)
            }
            read_state(source, metadata, {**state, OPTIMIZER: {**state[OPTIMIZER], STATE: saved}}, trust=trust)
            set_state_dict(model, several, model_state_dict=state[MODEL], optim_state_dict=state[OPTIMIZER])
            for each, parameters, names in _groups(state[OPTIMIZER], several):
                for parameter, name in zip(parameters, names, strict=False):
                    if name not in saved:  # It had not been used when the checkpoint was saved.
                        each.state.pop(parameter, None)
    return _read_extra(source, trust)


def _state(model: torch.nn.Module, optimizers: list[Any]) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict

    if not optimizers:
        return {MODEL: get_model_state_dict(model)}
    weights, state = get_state_dict(model, optimizers)
    return {MODEL: weights, OPTIMIZER: state}


def _forget_first_step(state: dict[str, Any], optimizers: list[Any], new: list[Any]) -> None:
    """PyTorch makes a step without gradients to learn what the state of an unused optimizer looks like. It would count:
    Adam's second step is not like its first."""
    for each, _, names in _groups(state, optimizers):
        if each in new:
            for name in names:
                state[STATE].pop(name, None)
    for each in new:
        each.state.clear()


def _groups(state: dict[str, Any], optimizers: list[Any]) -> Iterator[tuple[Any, list[torch.Tensor], list[str]]]:
    """The optimizers' groups of parameters, with the names of these in their state."""
    named = iter(state["param_groups"])
    for each in optimizers:
        for group in each.param_groups:
            yield each, group["params"], next(named)["params"]


def _several(optimizer: Optimizers | None) -> list[Any]:
    if optimizer is None:
        return []
    several: list[Any] = [optimizer] if hasattr(optimizer, "param_groups") else list(optimizer)
    for each in several:
        if not hasattr(each, "param_groups"):
            raise ConfigError(
                f"save_sharded() and load_sharded() take an optimizer, or several, after the model, not {each!r}. Pass "
                "plain values as extra=..., and no optimizer as None."
            )
    return several


def _refuse_other_parameters(model: torch.nn.Module, optimizers: list[Any]) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    for each in optimizers:
        if any(id(parameter) not in own for group in each.param_groups for parameter in group["params"]):
            raise ConfigError(
                f"The optimizer ({type(each).__name__}) holds parameters that are not those of the model. Make it from "
                "model.parameters(), after prepare_model()."
            )


def _refuse_left_over(checkpoint: Checkpoint, stored: Iterable[str], weights: Mapping[str, Any]) -> None:
    """Weights in the checkpoint that the model does not have: it is another model."""
    names = [name.removeprefix(f"{MODEL}.") for name in stored if name.startswith(f"{MODEL}.")]
    nested = tuple(f"{name}." for name, value in weights.items() if isinstance(value, dict))
    left_over = [name for name in names if name not in weights and not name.startswith(nested)]
    if left_over and all(name in names for name in weights):  # what is missing is said when it is read
        more = f" and {len(left_over) - 1} more" if len(left_over) > 1 else ""
        raise CheckpointError(
            f"{checkpoint!r} holds weights that the model does not have: {left_over[0]}{more}. Load it into a model of "
            "the same structure."
        )


@contextlib.contextmanager
def _plain_steps(optimizers: list[Any]) -> Iterator[None]:
    """PyTorch makes the state of a new optimizer by a step without gradients, which mixed precision does not take."""
    accelerator = Chosen.here().accelerator
    if accelerator is None or accelerator.scaler is None:
        yield
        return
    replaced = [(each, vars(each).pop("step")) for each in optimizers if "step" in vars(each)]
    try:
        yield
    finally:
        for each, step in replaced:
            each.step = step


# -- extra -----------------------------------------------------------------------------------------


def _encoded_extra(extra: Mapping[str, Any] | None) -> bytes:
    """As a file that can be loaded without running code; refuses everything else at the user's line."""
    from paceline.train.torch.sharded_files import saved_bytes

    if extra is not None and not isinstance(extra, Mapping):
        raise ConfigError(f"save_sharded(extra=...) takes a dict, not {type(extra).__name__}.")
    values = dict(extra or {})
    for name, value in values.items():
        if not isinstance(name, str):
            raise ConfigError(f"save_sharded(extra=...): the key {name!r} must be a str.")
        if not _is_plain(saved_bytes, value):
            raise ConfigError(
                f"save_sharded(extra={{{name!r}: ...}}): a {type(value).__name__} cannot be loaded without running "
                "code. Use numbers, texts, lists, dicts and tensors, such as the state_dict() of a scheduler."
            )
    return saved_bytes(values)


def _is_plain(encode: Any, value: Any) -> bool:
    import io

    try:
        load_plain(io.BytesIO(encode(value)), map_location="cpu")
    except CheckpointError:  # of this version of PyTorch, not of the value
        raise
    except Exception:
        return False
    return True


def _read_extra(checkpoint: Checkpoint, trust: bool) -> dict[str, Any]:
    import io

    import torch

    content = checkpoint.read_file(EXTRA_FILE)
    if content is None:
        return {}
    if trust:
        return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=False))
    try:
        return dict(load_plain(io.BytesIO(content), map_location="cpu"))
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{EXTRA_FILE} of {checkpoint!r} holds objects other than plain values.") from error
