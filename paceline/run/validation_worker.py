"""What runs inside a validation worker: install a session, call the user's function, send what it returned."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from paceline.air import faults
from paceline.air import session as session_slot
from paceline.air.errors import MetricError, SessionMisuseError
from paceline.air.metrics import plain_metrics
from paceline.air.temporary import temporary_directory
from paceline.run.backend import WorkerState
from paceline.run.data import open_shards
from paceline.run.messages import ValidationReturned, decode_setup, encode
from paceline.run.session import Session
from paceline.run.worker import resume_checkpoint, tell_of_end

if TYPE_CHECKING:
    from paceline.data.ingest.prepared import Parcel
    from paceline.engine.base import WorkerChannel

NICENESS = 10
"""Training goes before validation where they share cores."""


class ValidationWork:
    """The task that a group of validation workers starts on every rank; `argument` is the rank's SessionSetup."""

    KNOWN_AS: ClassVar[Mapping[str, str]] = {"function": "validation_config.fn"}

    def __init__(self, function: Callable[..., Any], datasets: Parcel | None = None, preprocessor: Any = None) -> None:
        self.function = function
        self.datasets = datasets
        self.preprocessor = preprocessor

    def __call__(self, channel: WorkerChannel, argument: bytes) -> None:
        setup = decode_setup(argument)
        if setup.gives_way:
            os.nice(NICENESS)
        session = ValidationSession(setup, channel, resume_checkpoint(setup, channel))
        session.preprocessor = self.preprocessor
        with contextlib.ExitStack() as resources:
            if setup.resume_relayed:
                session.fetch_start(resources.enter_context(temporary_directory()) / "checkpoint")
            if self.datasets is not None:
                session.shards = open_shards(self.datasets, setup, session.clock)
            session_slot.install(session)
            try:
                faults.fault_point("validating", step=setup.start_index)
                returned = self.function(session.get_checkpoint(), **setup.validation_kwargs)
                message = _message(self.function, returned) if setup.world_rank == 0 else None
            except BaseException:
                tell_of_end(session, failed=True)
                raise
            tell_of_end(session, failed=False)
            session.end()
            if message is not None:
                channel.send(encode(message))
            WorkerState.leave_all()


def _message(function: object, returned: object) -> ValidationReturned:
    """What rank 0 returned, as plain values."""
    if not isinstance(returned, Mapping):
        called = getattr(function, "__name__", "the validation function")
        raise MetricError(f"{called}() must return a dict of metrics, not {type(returned).__name__}.")
    metrics, _ = plain_metrics(returned)
    return ValidationReturned(metrics)


class ValidationSession(Session):
    """The session of a validation worker: it knows its ranks, its data and the checkpoint, and reports by returning."""

    def report(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise SessionMisuseError(
            "report() was called in a validation function: return the metrics as a dict instead, on rank 0."
        )

    def add_checkpoint(self, *arguments: Any) -> NoReturn:
        self.report()

    def should_checkpoint(self) -> bool:
        return False

    def preempted(self) -> None:
        return None
