"""TensorflowBackend: tells the workers of a run about each other as TensorFlow wants it, in TF_CONFIG."""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air.checks import names_what_was_meant
from paceline.air.errors import ConfigError
from paceline.run.backend import Backend, BackendConfig, WorkerState
from paceline.train.imports import AfterImport
from paceline.train.network import addresses_of, bound_socket

if TYPE_CHECKING:
    from paceline.engine.base import WorkerGroup


@names_what_was_meant()
@dataclass
class TensorflowConfig(BackendConfig):
    """How the workers of a TensorflowTrainer are connected. TensorFlow itself has nothing to set here."""

    @property
    def backend_cls(self) -> type[TensorflowBackend]:
        return TensorflowBackend

    def notes(self, world_size: int) -> list[str]:
        if world_size == 1:
            return []
        return [
            "TensorFlow's gRPC servers listen on all network interfaces of the workers' machines until the run ends, "
            "and ask for no password: keep others away with a firewall, or train where you trust the network."
        ]


HIDE_INFORMATION_AND_WARNINGS = "2"


class TensorflowBackend(Backend):
    """Every worker is a new interpreter: TensorFlow does not survive a fork once it has been used.

    It is the train function that makes a strategy, and with it TensorFlow's own server. The port of that server is
    held by its worker from the start, so that nobody else can take it in between.
    """

    fresh: ClassVar[bool] = True
    hide_other_gpus: ClassVar[bool] = True
    """TensorFlow takes every GPU that it sees, and all of its memory, in each worker."""
    collateral_phrases: ClassVar[tuple[str, ...]] = (
        "collective ops is aborted by",
        "failed to connect to all addresses",  # gRPC
    )
    collective_frames: ClassVar[tuple[str, ...]] = (
        "tensorflow.python.distribute.cross_device_ops:reduce",
        "tensorflow.python.distribute.cross_device_ops:batch_reduce",
        "tensorflow.python.distribute.cross_device_ops:_gather",
        "paceline.train.tensorflow.backend:meet",
    )
    mixed_frames: ClassVar[tuple[str, ...]] = (
        "tensorflow.python.eager.execute:quick_execute",
        "tensorflow.python.eager.execute:execute_with_cancellation",
        *(f"tf_keras.src.engine.training:{name}" for name in ("fit", "evaluate", "predict", "train_on_batch")),
        *(f"keras.src.backend.tensorflow.trainer:{name}" for name in ("fit", "evaluate", "predict", "train_on_batch")),
    )
    """A step computes and reduces in one call, which returns when both are done."""

    def environment(self, backend_config: BackendConfig) -> dict[str, str]:
        variables = {"TF_CPP_MIN_LOG_LEVEL": HIDE_INFORMATION_AND_WARNINGS}
        # Keras 3 cannot fit() on several workers; tf_keras can, and must be chosen before TensorFlow is imported.
        if find_spec("tf_keras") is not None:
            variables["TF_USE_LEGACY_KERAS"] = "1"
        return variables

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        addresses = addresses_of(worker_group.places)
        ports = worker_group.execute_each(hold_ports, [(address,) for address in addresses])
        cluster = [(address, *held) for address, held in zip(addresses, ports, strict=True)]
        worker_group.execute_each(enter, [(cluster, rank) for rank in range(worker_group.world_size)])

    def on_end(self) -> None:
        ClusterMember.end()


# -- in a worker, before TensorFlow is imported: to be found by the others, and how they meet ------
# `MultiWorkerMirroredStrategy()` waits for the servers of all workers inside of a call that holds the interpreter. The
# worker would give no sign of life as long as a slow peer is still reading its data, and would be taken for dead. So
# the workers wait for each other in Python, and TensorFlow is called once all are there.
#
# For that a worker has a port that is bound from the start. It listens once the worker has come to the meeting: until
# then, whoever connects is refused.


LOOK_EVERY_S = 0.02
TELL_AFTER_S = 30.0
"""The user hears whom a worker waits for; later again, each time after twice as long."""


Endpoint = tuple[str, int]
"""An address and a port."""


@dataclass
class ClusterMember(WorkerState):
    """What this worker holds as one of the cluster."""

    server_port: socket.socket | None = None
    """Bound, never listening: for this worker's own server of TensorFlow."""
    meeting_port: socket.socket | None = None
    peers: dict[str, tuple[int, Endpoint]] = field(default_factory=dict)
    """By the address of its server in the cluster: rank and meeting point of every other worker of the run."""
    has_met: bool = False
    """Whether TensorFlow has connected this worker with its peers."""

    def close(self) -> None:
        for held in (self.server_port, self.meeting_port):
            if held is not None:
                held.close()


def hold_ports(address: str) -> tuple[int, int]:
    """Take free ports: one for this worker's own server of TensorFlow to listen on later, and one for the meeting.

    The server binds the same port beside this socket, because both allow that. To all other users of this machine,
    and to all sockets that do not ask to share, the port is taken.
    """
    ClusterMember.end()  # a worker that is the driver itself may have been one before
    member = ClusterMember.here()
    member.server_port = bound_socket("", shared=True)  # TensorFlow listens on all addresses, whatever is in TF_CONFIG
    member.meeting_port = bound_socket(address)
    return int(member.server_port.getsockname()[1]), int(member.meeting_port.getsockname()[1])


def enter(cluster: Sequence[tuple[str, int, int]], rank: int) -> None:
    """Describe the cluster and this worker's place in it to TensorFlow, and meet the others when it connects them.

    `cluster` has the address of each rank, the port of its server and that of the meeting.
    """
    workers = [f"{address}:{port}" for address, port, _ in cluster]
    task = {"type": "worker", "index": rank}
    os.environ.update(
        {
            "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task}),
            "TF_GRPC_REUSE_PORT": "1",
            "no_grpc_proxy": _past_the_proxy([address for address, _, _ in cluster]),
        }
    )
    if len(cluster) > 1:
        meetings = {peer: (address, meeting) for peer, (address, _, meeting) in enumerate(cluster) if peer != rank}
        ClusterMember.here().peers = {workers[peer]: (peer, meeting) for peer, meeting in meetings.items()}
        _CORRECTIONS.install()


def _past_the_proxy(addresses: Sequence[str]) -> str:
    """The hosts that gRPC connects to directly: otherwise it looks for the workers behind the user's http_proxy.

    Where this variable is set, gRPC does not look at no_proxy any more.
    """
    names = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
    chosen = next((os.environ[name] for name in names if os.environ.get(name)), "")
    return ",".join([*([chosen] if chosen else []), *dict.fromkeys(addresses)])


def _meet_first(module: ModuleType) -> None:
    context: Any = module.Context
    enable_collective_ops = context.enable_collective_ops

    @functools.wraps(enable_collective_ops)
    def met(self: Any, server_def: Any) -> Any:
        addresses = {address for job in server_def.cluster.job for address in job.tasks.values()}
        peers = ClusterMember.here().peers
        meet({rank: meeting for address, (rank, meeting) in peers.items() if address in addresses})
        return enable_collective_ops(self, server_def)

    context.enable_collective_ops = met


def meet(others: Mapping[int, Endpoint]) -> None:
    """Say that this worker is there, and wait until all others are."""
    member = ClusterMember.here()
    if member.meeting_port is not None:
        member.meeting_port.listen(len(others) + 1)
    began, tell_after = time.monotonic(), TELL_AFTER_S
    missing = dict(others)
    while missing := {rank: meeting for rank, meeting in missing.items() if not _is_there(meeting)}:
        if time.monotonic() - began > tell_after:
            print(_waiting_text(list(missing), tell_after), file=sys.stderr, flush=True)
            tell_after *= 2
        time.sleep(LOOK_EVERY_S)
    member.has_met = True


def _is_there(meeting: Endpoint) -> bool:
    with socket.socket() as caller:
        caller.settimeout(1.0)
        return caller.connect_ex(meeting) == 0


def _waiting_text(ranks: list[int], seconds: float) -> str:
    names = ", ".join(map(str, ranks))
    return (
        f"MultiWorkerMirroredStrategy() has waited {seconds:g} s for rank(s) {names}, which did not make theirs yet. "
        "Every worker must make one."
    )


# -- what Keras 3 cannot do under a strategy of several workers ------------------------------------
# Keras 3 fails there with an error about PerReplica values, or worse. A model under that strategy is fine as such:
# custom loops work. So it is the methods that are guarded, at the moment Keras 3 defines them, if it ever does.


DEFINING_MODULE = "keras.src.backend.tensorflow.trainer"
GUARDED_METHODS = ("fit", "evaluate", "train_on_batch", "test_on_batch")
"""Those that fail; predict and predict_on_batch work."""


def _guard(module: ModuleType) -> None:
    """Put the check in front of the methods that do not work."""
    trainer: Any = module.TensorFlowTrainer
    for name in GUARDED_METHODS:
        setattr(trainer, name, _checked(getattr(trainer, name)))


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(model: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        if isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise ConfigError(keras3_advice(method.__name__))
        return method(model, *args, **kwargs)

    return checked


def keras3_advice(method: str) -> str:
    """What to use instead of this method."""
    if find_spec("tf_keras") is not None:
        use_tf_keras = "build it with `tf.keras` under TF_USE_LEGACY_KERAS=1, which is tf_keras and can"
    else:
        use_tf_keras = "pip install --no-deps tf_keras, which can and is then used as `tf.keras`"
    return (
        f"Keras 3 cannot {method}() a model under a MultiWorkerMirroredStrategy of several workers. Ways that work: "
        f"{use_tf_keras}; or train in a loop of your own with strategy.run(); or use HorovodTrainer "
        "(paceline.train.horovod)."
    )


_CORRECTIONS = AfterImport({"tensorflow.python.eager.context": _meet_first, DEFINING_MODULE: _guard})
