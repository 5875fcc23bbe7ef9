"""What one model's server takes on: sizes, counts and times."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.air.checks import is_number, whole_number
from paceline.air.errors import ConfigError
from paceline.web.limits import ConnectionLimits


@dataclass(frozen=True, kw_only=True)
class Limits(ConnectionLimits):
    """The limits of connections, and those of the model behind them."""

    max_batch_size: int = 1024
    """Rows that are predicted together; one request is never cut."""
    max_wait_ms: float = 0.0
    """How long a request waits for others to be predicted with. Those that come while the model is busy are
    predicted together anyhow."""
    max_body_bytes: int = 32 << 20
    max_rows: int = 100_000
    """Rows in one request."""
    max_waiting: int = 1024
    """Requests that wait for the model."""
    max_held_bytes: int | None = None
    """Bytes of all bodies that are being read or wait; None: 256 MiB, or one of the largest bodies."""

    @property
    def held_bytes(self) -> int:
        return max(256 << 20, self.max_body_bytes) if self.max_held_bytes is None else self.max_held_bytes

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.max_batch_size, "max_batch_size", least=1)
        whole_number(self.max_body_bytes, "max_body_bytes", least=1)
        whole_number(self.max_rows, "max_rows", least=1)
        if not is_number(self.max_wait_ms) or not 0 <= self.max_wait_ms <= 60_000:
            raise ConfigError(f"max_wait_ms is {self.max_wait_ms!r}: give milliseconds from 0 to 60000.")
        if self.max_wait_ms >= self.request_timeout_s * 1000:
            raise ConfigError(
                f"With max_wait_ms={self.max_wait_ms:g} a request would wait until it is given up after "
                f"request_timeout_s={self.request_timeout_s:g}. Make the one smaller or the other larger."
            )
