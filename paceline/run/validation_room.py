"""Which validations may bring their workers up, and on which GPUs. Training goes first."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.engine.base import Engine
from paceline.run.phases import Phase
from paceline.run.spec import RunSpec

if TYPE_CHECKING:
    from paceline.air.resources import ScalingConfig
    from paceline.run.attempt import Attempt

_TRAINING_NEEDS_ROOM = (Phase.OPENED, Phase.STARTING, Phase.LAUNCHING, Phase.ENDING)
"""An attempt that ends may be followed by another one, which needs the same room."""


@dataclass(eq=False)
class Place:
    """One validation, from the moment it waits for room until its workers have ended."""

    devices: tuple[str, ...] | None = None
    """The GPUs of its workers; None: the engine chooses them, or they need none."""
    has_training_room: bool = False
    """It came in when the training was over and no other validation was inside: the training's room is its own."""
    has_workers: bool = False
    """Its workers are up, so the engine counts them."""


class ValidationRoom:
    """The room that the validations of a run share. They wait in a thread each; the run says what the training does."""

    def __init__(self, spec: RunSpec, scaling: ScalingConfig, engine: Engine) -> None:
        self.workers = scaling.max_workers or 1
        self.training: tuple[Phase, Attempt | None] = (Phase.OPENED, None)
        """What the training does; its workers, while there are some."""
        self._spec = spec
        self._scaling = scaling
        self._engine = engine
        self._lock = threading.Lock()
        self._waiting: list[Place] = []
        """The one that has waited longest comes first."""
        self._inside: list[Place] = []

    @property
    def training_is_over(self) -> bool:
        return self.training[0] is Phase.VALIDATING

    @property
    def training_needs_room(self) -> bool:
        return self.training[0] in _TRAINING_NEEDS_ROOM

    def wait(self) -> Place:
        """Get in line."""
        place = Place()
        self._waiting.append(place)  # without the lock: the run must not wait for an engine that is asked for room
        return place

    def enter(self, place: Place) -> bool:
        """Take room that is left over. False if the validation has to wait.

        When the training is over, the one that has waited longest need not find room if no other is inside: whoever
        starts its workers says so if there is none.
        """
        with self._lock:
            is_next = self.training_is_over and not self._inside and self._waiting[0] is place
            devices = self._free_devices()
            if not is_next and (devices == () or not self._is_left_over()):
                return False
            self._waiting.remove(place)
            self._inside.append(place)
            place.devices, place.has_training_room = devices or None, is_next
            return True

    def give_way(self, place: Place) -> None:
        """Its workers did not come up, as the training needs their room: it is the next one to get some."""
        with self._lock:
            self._inside.remove(place)
            self._waiting.insert(0, place)

    def leave(self, place: Place) -> None:
        """It is over."""
        with self._lock:
            for places in (self._waiting, self._inside):
                if place in places:
                    places.remove(place)

    def _is_left_over(self) -> bool:
        if self.training_needs_room:
            return False
        room = self._engine.room(self._scaling.on_nodes()[0])
        coming_up = sum(not place.has_workers for place in self._inside)  # the engine may not count them yet
        return room is None or room >= self.workers * (1 + coming_up)

    def _free_devices(self) -> tuple[str, ...] | None:
        """GPUs that nobody of this run uses, as many as are needed; none if they are too few. None: the engine chooses,
        or no GPU is asked for."""
        count = math.ceil(self._scaling.num_gpus_per_worker * self.workers)
        if not count or self._engine.capabilities.chooses_nodes:
            return None
        given = None if self._spec.devices is None else self._spec.devices()
        _, training = self.training
        used = {gpu for place in (training.places if training is not None else ()) for gpu in place.gpus or ()}
        used.update(gpu for place in self._inside for gpu in place.devices or ())
        free = tuple(gpu for gpu in (self._engine.gpu_names() if given is None else given) if gpu not in used)
        return free[:count] if len(free) >= count else ()
