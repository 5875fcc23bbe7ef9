"""A real MLflow server in the environment of `make test-trackers`, which can be killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

PYTHON = Path(__file__).resolve().parent.parent / ".venv-trackers" / "bin" / "python"
START_S = 180.0
"""The first start sets up a database, and imports for a long time on a busy machine."""


class MLflowServer:
    """One server on one port, with a database in `folder` that outlives it."""

    def __init__(self, folder: Path, python: str | Path = PYTHON) -> None:
        self._folder = folder
        self._python = python
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        command = [str(self._python), "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1"]
        command += ["--port", str(self._port), "--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db"]
        command += ["--default-artifact-root", f"{self._folder}/artifacts"]
        env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        env["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # a dozen processes that tracking does not need
        with open(self._folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        deadline = time.monotonic() + START_S
        while not self.answers:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"the MLflow server did not start; see {self._folder}/server.log")
            time.sleep(0.05)

    @property
    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        """As a crash would: no goodbye."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
