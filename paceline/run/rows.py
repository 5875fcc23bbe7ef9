"""Rows of the metrics table: the user's metrics plus the keys every result carries."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.air.constants import AUTOFILLED_KEYS
from paceline.run.spec import TrialIdentity


def node_ip() -> str:
    """This machine's address as others see it. Nothing is sent: connecting a datagram socket only picks a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


@dataclass
class RowFiller:
    """Completes the rows of one attempt. Everything but the arguments of `fill` is fixed per attempt."""

    identity: TrialIdentity
    config: Mapping[str, Any]
    hostname: str
    node_ip: str
    pid: int
    """Rank 0's process."""
    start_iteration: int = 0
    """Iterations that the attempt found already done."""
    start_time_s: float = 0.0
    """Training time that the attempt found already spent."""
    warmup_time: float = 0.0
    _previous_elapsed: float = field(default=0.0, init=False)
    _second: int = field(default=-1, init=False)
    _date: str = field(default="", init=False)

    def first(self) -> dict[str, Any]:
        """What is known of a run before its first report."""
        now = int(time.time())
        return {
            "trial_id": self.identity.trial_id,
            "experiment_id": self.identity.experiment_id,
            "date": self._date_of(now),
            "timestamp": now,
            "pid": self.pid,
            "hostname": self.hostname,
            "node_ip": self.node_ip,
            "config": self.config,
        }

    def fill(self, index: int, metrics: Mapping[str, Any], stamp: float, elapsed: float) -> dict[str, Any]:
        """The row of report `index`; the user's own keys win over the filled-in ones."""
        timestamp = int(stamp)
        this_iter = elapsed - self._previous_elapsed
        self._previous_elapsed = elapsed
        row: dict[str, Any] = {
            **metrics,
            "_timestamp": timestamp,
            "_time_this_iter_s": this_iter,
            "_training_iteration": index,
            "time_this_iter_s": this_iter,
            "done": False,
            "timesteps_total": None,
            "episodes_total": None,
            "training_iteration": index,
            "trial_id": self.identity.trial_id,
            "experiment_id": self.identity.experiment_id,
            "date": self._date_of(timestamp),
            "timestamp": timestamp,
            "time_total_s": self.start_time_s + elapsed,
            "pid": self.pid,
            "hostname": self.hostname,
            "node_ip": self.node_ip,
            "config": self.config,
            "time_since_restore": elapsed,
            "timesteps_since_restore": 0,
            "iterations_since_restore": index - self.start_iteration,
            "warmup_time": self.warmup_time,
            "experiment_tag": self.identity.experiment_tag,
        }
        row.update(metrics)
        return row

    def _date_of(self, second: int) -> str:
        # Formatting a date costs more than the rest of the row; most rows share their second.
        if second != self._second:
            self._second = second
            self._date = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(second))
        return self._date


def with_metrics_of(donor: Mapping[str, Any], row: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The last row of a run that took over another one's state and reported nothing since: what the user reported
    belongs to that state, the rest is the run's own."""
    own = {key: value for key, value in row.items() if key in AUTOFILLED_KEYS}
    return {**{key: value for key, value in donor.items() if key not in AUTOFILLED_KEYS}, **own, "config": dict(config)}
