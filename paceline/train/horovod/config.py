"""Settings of the connection between Horovod's workers."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.air.checks import check_seconds, whole_number
from paceline.air.errors import ConfigError
from paceline.air.keywords import names_what_was_meant
from paceline.run.backend import BackendConfig

if TYPE_CHECKING:
    from paceline.train.horovod.backend import HorovodBackend

LOOPBACK = "127.0.0.1"
HOST = "localhost"
"""The name by which Horovod's workers know that they are on one machine."""


@names_what_was_meant()
@dataclass
class HorovodConfig(BackendConfig):
    """How the workers of a HorovodTrainer are connected. They are processes of this machine: nobody logs in anywhere,
    so that `key`, the `ssh_` settings and `placement_group_timeout_s` are taken for the sake of existing code and
    change nothing.

    Horovod's own variables (HOROVOD_GLOO_TIMEOUT_SECONDS, HOROVOD_LOG_LEVEL, HOROVOD_GLOO_IFACE, HOROVOD_CYCLE_TIME,
    ...) can be set in the environment; where they say the same as a setting here, they win.
    """

    nics: Iterable[str] | None = None
    """Network interfaces: the workers talk over the first one of them that this machine has. None: loopback, which
    nobody else can reach."""
    verbose: int = 1
    """What Horovod writes into the workers' logs: 0 errors, 1 warnings too, 2 what it does, 3 every detail."""
    key: str | None = None
    """Not used."""
    ssh_port: int | None = None
    """Not used."""
    ssh_identity_file: str | None = None
    """Not used."""
    ssh_str: str | None = None
    """Not used."""
    timeout_s: float = 300
    """How long `hvd.init()` waits for the other workers to call it, and an operation for one that does not answer."""
    placement_group_timeout_s: float = 100
    """Not used."""

    def __post_init__(self) -> None:
        check_seconds(self.timeout_s, "HorovodConfig(timeout_s)")
        whole_number(self.verbose, "HorovodConfig(verbose)", least=0)
        if self.nics is not None:
            self.nics = _names(self.nics)
        self.interface()

    def interface(self) -> str:
        """The one over which the workers talk."""
        there = [name for _, name in socket.if_nameindex()]
        if self.nics is None:
            return "lo0" if "lo" not in there and "lo0" in there else "lo"
        for name in self.nics:
            if name in there:
                return name
        raise ConfigError(
            f"HorovodConfig(nics={list(self.nics)!r}): this machine has none of them, but {', '.join(there)}. "
            "Leave nics away to use loopback."
        )

    @property
    def backend_cls(self) -> type[HorovodBackend]:
        from paceline.train.horovod.backend import HorovodBackend

        return HorovodBackend


def _names(nics: Any) -> tuple[str, ...]:
    """As a tuple; a set has no order of its own."""
    if isinstance(nics, str) or not isinstance(nics, Iterable):
        names: list[Any] = [nics]
    else:
        names = list(nics)
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"HorovodConfig(nics={nics!r}): give names of network interfaces, e.g. ['eth0'].")
    return tuple(sorted(names) if isinstance(nics, set | frozenset) else names)


@dataclass
class HorovodTorchConfig(HorovodConfig):
    """The same, for a train function that uses PyTorch and not TensorFlow: its workers can be forked."""

    @property
    def backend_cls(self) -> type[HorovodBackend]:
        from paceline.train.horovod.backend import HorovodTorchBackend

        return HorovodTorchBackend
