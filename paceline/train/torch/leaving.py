"""How a rank that has returned lets go of the others: its Gloo connections are closed in one direction.

Whoever waits for this rank in a collective operation then gets an error at once. What the rank has sent before still
arrives, and it still takes in what others send: those that have all they need do not notice. Gloo has no function for
this, and its destructor may hang, so the sockets are found by watching which ones a new process group opens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.train.network import open_sockets, send_no_more

COLLECTIVE_FRAMES = (
    *(
        f"torch.distributed.distributed_c10d:{name}"
        for name in (
            *("all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "barrier", "monitored_barrier", "scatter"),
            *("all_gather", "all_gather_into_tensor", "all_gather_coalesced", "gather", "reduce_scatter"),
            *("reduce_scatter_tensor", "all_to_all", "all_to_all_single", "send", "recv", "batch_isend_irecv"),
            *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
            *("send_object_list", "recv_object_list", "_store_based_barrier", "new_group"),
            *("all_gather_single", "reduce_scatter_single"),  # what the others are made of; FSDP2 calls them itself
        )
    ),
    "torch.distributed.utils:_sync_module_states",
    "torch.distributed.utils:_sync_params_and_buffers",
    "torch.distributed.utils:_verify_param_shape_across_processes",
    "torch.nn.parallel.distributed:_distributed_broadcast_coalesced",
    "torch.distributed._functional_collectives:wait_tensor",
    "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_all_gather_copy_out",  # of FSDP2, if it prefetches
)
"""Where a rank does nothing but wait for others."""
MIXED_FRAMES = ("torch._tensor:backward", "torch.autograd:backward")
"""DistributedDataParallel averages gradients in there, and FSDP2 gathers layers."""

_MAKES_GROUPS = "_new_process_group_helper"
"""The function of torch.distributed that makes every group, also those of the train function."""


class GlooSockets:
    """The connections of this process's Gloo groups."""

    def __init__(self) -> None:
        self._opened: dict[int, int] = {}
        """Descriptor to inode: a number may be used again for something else."""

    def watch(self, module: Any) -> None:
        """Notice the sockets of every group that the module `torch.distributed.distributed_c10d` makes from now on."""
        original: Callable[..., Any] | None = getattr(module, _MAKES_GROUPS, None)
        if original is None or hasattr(original, "__wrapped__"):
            return

        def make_group(*args: Any, **kwargs: Any) -> Any:
            backend = args[3] if len(args) > 3 else kwargs.get("backend")
            if str(backend).lower() != "gloo":  # NCCL may still be sending when the train function returns.
                return original(*args, **kwargs)
            before = open_sockets()
            try:
                return original(*args, **kwargs)
            finally:
                self._opened.update(open_sockets().items() - before.items())

        make_group.__wrapped__ = original  # type: ignore[attr-defined]
        setattr(module, _MAKES_GROUPS, make_group)

    def shut_down(self) -> None:
        """Send nothing more. Descriptors stay open: they are Gloo's."""
        still_there = open_sockets().items() & self._opened.items()
        self._opened.clear()
        send_no_more([descriptor for descriptor, _ in still_there])
