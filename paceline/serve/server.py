"""The server that `serve.run(..., blocking=False)` returns."""

from __future__ import annotations

import socket
import ssl
from typing import Any

from paceline.serve.limits import Limits
from paceline.serve.model import ServedModel
from paceline.web.server import BackgroundServer


class RunningServer(BackgroundServer):
    """A model's server in a thread of this process; `stop()` or the end of a `with` block ends it."""

    def __init__(
        self,
        app: Any,
        served: ServedModel,
        limits: Limits,
        listening: socket.socket,
        token: str | None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._served = served
        super().__init__(app, limits, listening, token, tls, thread_name="paceline-serve")

    @property
    def name(self) -> str:
        """What the model is called in /model and /docs."""
        return self._served.name

    def reload(self, checkpoint: Any = None) -> None:
        """Serve another checkpoint (a Checkpoint or a path), by default what the served run has now.

        It is loaded and tried while the old model serves on; if that fails, the error is raised and the old one stays.
        """
        if checkpoint is None:
            self._served.reload()
        else:
            self._served.reload_from(checkpoint)

    def __repr__(self) -> str:
        return f"RunningServer({self.url!r}, {self.name!r}, {self.state})"
