"""LightningEnvironment: tells Lightning who this worker is among its peers."""

from __future__ import annotations

import os

from paceline.air.session import SessionProtocol, current, required


class WorkerEnvironment:
    """The workers are there already, and the session knows their ranks: Lightning starts no processes.

    For `lightning.pytorch.Trainer(plugins=[LightningEnvironment()], strategy=DDPStrategy(), ...)` in the function of a
    TorchTrainer.
    """

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        return current() is not None

    def world_size(self) -> int:
        return worker_session("LightningEnvironment").world_size

    def global_rank(self) -> int:
        return worker_session("LightningEnvironment").world_rank

    def local_rank(self) -> int:
        return worker_session("LightningEnvironment").local_rank

    def node_rank(self) -> int:
        return worker_session("LightningEnvironment").node_rank

    def set_world_size(self, size: int) -> None:
        """Lightning counts devices of its own; how many workers there are is settled."""

    def set_global_rank(self, rank: int) -> None:
        """As for the size."""


def worker_session(name: str) -> SessionProtocol:
    """The session of this worker; `name` is what needs it."""
    return required(
        f"paceline.train.lightning.{name} works inside of a train function only: make the Lightning Trainer in the "
        "function that you pass to TorchTrainer."
    )
