"""The model that is being served, and its replacement by another one."""

from __future__ import annotations

import logging
import threading
from typing import Any

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointError, ConfigError, PacelineError
from paceline.serve.columns import listed
from paceline.serve.model import Model, Recipe
from paceline.serve.place import Place, place_of
from paceline.serve.rows import Rows, zeros

logger = logging.getLogger("paceline.serve")

PROBE_ROWS = 16


class ReloadUnderWayError(PacelineError, RuntimeError):
    """Another reload has not ended yet."""


class ServedModel:
    """Holds the current model. A new one is loaded and tried beside it, and only then takes its place."""

    def __init__(self, name: str, model: Model, place: Place | None = None, recipe: Recipe | None = None) -> None:
        self.name = name
        self.current = model
        self._place = place
        self._recipe = recipe
        self._last_good: Rows | None = None
        self._reloading = threading.Lock()
        self._try_out(model)

    def remember(self, rows: Rows) -> None:
        """Rows that were predicted well: a new model must manage them too."""
        self._last_good = rows

    def reload(self, number: int | None = None) -> Model:
        """Load again from where the model came from: what the run now serves, or one of its checkpoints."""
        if self._place is None:
            raise ConfigError("The model was not loaded from a checkpoint: there is nothing to load again.")
        return self._replace(self._place.checkpoint(number))

    def reload_from(self, checkpoint: Any) -> Model:
        """Load another checkpoint, of whichever place; later reloads look there."""
        place = place_of(checkpoint)
        model = self._replace(place.checkpoint(None))
        self._place = place
        return model

    def follow(self) -> None:
        """Reload if the place stands for another checkpoint now."""
        assert self._place is not None
        checkpoint = self._place.checkpoint(None)
        if checkpoint.path != self.current.origin:
            self._replace(checkpoint)

    def sign(self) -> Any:
        """Changes when the place may have another checkpoint."""
        return None if self._place is None else self._place.sign()

    def _replace(self, checkpoint: Checkpoint) -> Model:
        if self._recipe is None:
            raise ConfigError("The server was given a predictor, not a class that makes one of a checkpoint.")
        if not self._reloading.acquire(blocking=False):
            raise ReloadUnderWayError("Another reload is under way.")
        try:
            model = self._recipe.load(checkpoint)
            self._try_out(model)
            self.current = model
        finally:
            self._reloading.release()
        logger.info("%s: now serving %s", self.name, model.origin)
        return model

    def _try_out(self, model: Model) -> None:
        """Predict the last rows that went well, or rows of zeros: what cannot do that is not served."""
        before, now = self.current.columns.kinds, model.columns.kinds
        if before and now and before.keys() != now.keys():
            raise CheckpointError(
                f"{model.origin} takes other columns than the model that is served; differing: "
                f"{listed(sorted(before.keys() ^ now.keys()))}. Start a server of its own for it."
            )
        rows = self._last_good.head(PROBE_ROWS) if self._last_good is not None else zeros(model.columns)
        if rows is None:
            return
        try:
            model.predict([rows])
        except Exception as error:
            what = "rows of zeros" if self._last_good is None else "rows that the model before it predicted"
            raise CheckpointError(f"{model.origin} cannot predict {what}: {type(error).__name__}: {error}") from error
