"""TensorflowBackend: tells the workers of a run about each other as TensorFlow wants it, in TF_CONFIG."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from paceline.air.checks import names_what_was_meant
from paceline.run.backend import Backend, BackendConfig
from paceline.train.tensorflow import cluster

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
            "TensorFlow's gRPC servers listen on all network interfaces of this machine until the run ends, and ask "
            "for no password: keep others away with a firewall, or train where you trust the network."
        ]


HIDE_INFORMATION_AND_WARNINGS = "2"


class TensorflowBackend(Backend):
    """Every worker is a new interpreter: TensorFlow does not survive a fork once it has been used.

    It is the train function that makes a strategy, and with it TensorFlow's own server. The port of that server is
    held by its worker from the start, so that nobody else can take it in between.
    """

    one_machine: ClassVar[bool] = True
    fresh: ClassVar[bool] = True
    hide_other_gpus: ClassVar[bool] = True
    """TensorFlow takes every GPU that it sees, and all of its memory, in each worker."""
    collateral_phrases: ClassVar[tuple[str, ...]] = (
        "collective ops is aborted by",
        "failed to connect to all addresses",  # gRPC
    )

    def environment(self, backend_config: BackendConfig) -> dict[str, str]:
        variables = {"TF_CPP_MIN_LOG_LEVEL": HIDE_INFORMATION_AND_WARNINGS}
        # Keras 3 cannot fit() on several workers; tf_keras can, and must be chosen before TensorFlow is imported.
        if find_spec("tf_keras") is not None:
            variables["TF_USE_LEGACY_KERAS"] = "1"
        return variables

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        ports = worker_group.execute(cluster.hold_ports)
        for rank in range(worker_group.world_size):
            worker_group.execute_single(rank, cluster.enter, ports, rank)

    def on_end(self) -> None:
        cluster.ClusterMember.end()
