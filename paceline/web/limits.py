"""What one server puts up with from its clients: sizes, counts and times of connections."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.air.checks import check_seconds


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Beyond each of these a client gets an answer that says so, or its connection ends. Nobody else is affected."""

    request_timeout_s: float = 30.0
    """From a request's last byte to its answer."""
    header_timeout_s: float = 10.0
    body_timeout_s: float = 20.0
    write_timeout_s: float = 30.0
    """How long a client may leave its answer unread."""
    keep_alive_s: float = 15.0
    max_header_bytes: int = 64 << 10
    max_idle_connections: int = 400
    """Connections without a request under way; of more than these the oldest is closed."""
    max_connections: int = 800

    def __post_init__(self) -> None:
        check_seconds(self.request_timeout_s, "request_timeout_s")
