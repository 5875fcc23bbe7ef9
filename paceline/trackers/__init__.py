"""Trackers: rows and outcomes of runs, sent to MLflow, Weights & Biases, Comet and Aim."""

from __future__ import annotations

from paceline.air.lazy import lazy_imports

with lazy_imports(__name__):
    from paceline.trackers.callback import TrackerCallback as TrackerCallback
    from paceline.trackers.sending import send as send
    from paceline.trackers.tracker import Outcome as Outcome
    from paceline.trackers.tracker import RejectedError as RejectedError
    from paceline.trackers.tracker import RunGoneError as RunGoneError
    from paceline.trackers.tracker import TrackedCheckpoint as TrackedCheckpoint
    from paceline.trackers.tracker import TrackedRow as TrackedRow
    from paceline.trackers.tracker import TrackedRun as TrackedRun
    from paceline.trackers.tracker import Tracker as Tracker
