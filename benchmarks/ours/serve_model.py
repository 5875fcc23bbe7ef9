"""A checkpoint served by paceline with its default settings, token included. Argument: the folder of the XGBoost model.

Writes its address to the file `ready` and serves until SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys

from benchmarks import workload
from paceline import serve
from paceline.train.xgboost import XGBoostPredictor


def main(folder: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    running = serve.run(XGBoostPredictor, f"{folder}/checkpoint", port=0, blocking=False)
    assert running is not None
    with running as server:
        (workload.place() / "ready.part").write_text(json.dumps({"url": server.url, "token": server.token}))
        (workload.place() / "ready.part").rename(workload.place() / "ready")
        signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    main(sys.argv[1])
