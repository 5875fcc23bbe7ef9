"""The accelerator: what one worker's train loop needs to know to prepare models, optimizers and losses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch.nn.parallel import DistributedDataParallel

from paceline.air.errors import ConfigError
from paceline.data import uneven
from paceline.train.torch.collective_waits import CollectiveWaits

if TYPE_CHECKING:
    from paceline.train.torch.fully_sharded import Shard


class Accelerator:
    """Prepares the parts of a train loop for one worker's device, with or without mixed precision.

    Mixed precision is bfloat16 on CPU, whose range is that of float32, and float16 on
    GPU, where losses are scaled so that small gradients do not vanish.
    """

    def __init__(
        self, device: torch.device, world_size: int, amp: bool = False, scaler: torch.amp.GradScaler | None = None
    ) -> None:
        self.device = device
        self.world_size = world_size
        self.amp = amp
        if scaler is None and amp and device.type != "cpu":
            scaler = torch.amp.GradScaler(device.type)
        self.scaler = scaler
        self.collective_waits = CollectiveWaits()
        self._scaled: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._stepped = False

    def prepare_model(
        self,
        model: torch.nn.Module,
        move_to: torch.device | None,
        strategy: str | Shard | None,
        options: dict[str, Any],
    ) -> torch.nn.Module:
        """The model on its device, in mixed precision, wrapped for parallel training if there are peers.

        FSDP2 shards it even without peers: what it does besides, such as mixed precision, is then the same.
        """
        if strategy not in ("ddp", "fsdp", "fsdp2", None) and not callable(strategy):
            raise ConfigError(
                f"prepare_model(parallel_strategy={strategy!r}): choose 'ddp', 'fsdp2', 'fsdp', a function that shards "
                "the model, or None."
            )
        shards = strategy == "fsdp2" or callable(strategy)
        if move_to is not None and not shards:
            model = model.to(move_to)
        if self.amp:
            dtype = torch.bfloat16 if self.device.type == "cpu" else torch.float16
            _autocast_forward(model, functools.partial(torch.autocast, self.device.type, dtype=dtype))
        if shards and dist.is_initialized():
            from paceline.train.torch.fully_sharded import shard_by, shard_layers

            place = move_to or self.device
            if callable(strategy):
                return shard_by(strategy, model, place, options)
            return shard_layers(model, place, options)
        if self.world_size == 1 or strategy is None:
            return model
        if strategy == "ddp":
            if self.device.type != "cpu":
                options = {"device_ids": [self.device], "output_device": self.device, **options}
            parallel = DistributedDataParallel(model, **options)
            self.collective_waits.add(parallel)
            uneven.register(parallel)
            return parallel
        return fsdp.FullyShardedDataParallel(model, **{"device_id": self.device, **options})

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer's step() undo the scaling of the loss where there is one."""
        if self.scaler is not None and optimizer not in self._scaled:
            _scale_steps(optimizer, self.scaler, self._note_step)
            self._scaled.add(optimizer)

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of the loss."""
        if self.scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        # The scale may change only when every optimizer has taken its step with the old one:
        # that is so when the next loss comes.
        if self._stepped:
            self.scaler.update()
            self._stepped = False
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def _note_step(self) -> None:
        self._stepped = True


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The user's model inside of a DistributedDataParallel."""
    while isinstance(model, DistributedDataParallel):
        model = model.module
    return model


def _autocast_forward(model: torch.nn.Module, autocast: Callable[[], torch.autocast]) -> None:
    """Let the model's forward run under autocast, called as `model(x)` or `model.forward(x)`.

    The wrapper lives on the instance. Pickles and copies of the model leave it out, so
    that a saved model can be loaded without this library.
    """
    forward = model.forward
    getstate: Callable[[], Any] = model.__getstate__

    @functools.wraps(forward)
    def forward_under_autocast(*args: Any, **kwargs: Any) -> Any:
        with autocast():
            return forward(*args, **kwargs)

    def getstate_without_wrappers() -> Any:
        state = getstate()
        if isinstance(state, dict):
            state = {key: value for key, value in state.items() if key not in ("forward", "__getstate__")}
        return state

    model.forward = forward_under_autocast
    model.__dict__["__getstate__"] = getstate_without_wrappers


def _scale_steps(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, on_step: Callable[[], None]) -> None:
    """Replace step() on the instance, so that the optimizer stays one for schedulers and checkpoints."""
    plain_step = optimizer.step
    inside = False

    @functools.wraps(type(optimizer).step)
    def step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> float | None:
        nonlocal inside
        if closure is not None:
            raise ValueError("An optimizer with mixed precision takes no closure: call step() after backward(loss).")
        if inside:  # the scaler found the gradients finite and takes the step
            return plain_step()
        inside = True
        try:
            result = scaler.step(optimizer)
        finally:
            inside = False
        on_step()
        return result

    # A scheduler expects a bound method, which it wraps in its turn.
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
