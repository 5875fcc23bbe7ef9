"""Which parameters of a search matter: computed in the background, because it takes seconds."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from paceline.air.errors import PacelineError
from paceline.tune.experiment.summary import ExperimentSummary
from paceline.view.searches import importances

MOST_TRIALS = 300
"""For importances: some 10 ms each, and more of them say little more."""
PATIENCE_SECONDS = 2.0
"""An answer waits so long for the importances; a later one has them."""
STILL_COMPUTED = "The importances are being computed. Ask again in a moment."
_MOST_KEPT = 20


class ImportanceStore:
    """Importances that were asked for. Each is computed once for so many ended trials, in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._kept: dict[str, tuple[int, Future[dict[str, float]]]] = {}

    def get(self, id: str, search: ExperimentSummary) -> tuple[dict[str, float] | None, str]:
        """The importances, or None and why they are not known."""
        ended = sum(trial.ended is not None for trial in search.trials)
        with self._lock:
            count, future = self._kept.get(id, (-1, Future()))
            if count != ended and (count < 0 or (future.done() and ended >= count * 1.1)):
                future = Future()
                self._kept.pop(id, None)
                self._kept[id] = (ended, future)
                if len(self._kept) > _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                threading.Thread(
                    target=self._compute, args=(future, search), name="paceline-importances", daemon=True
                ).start()
        try:
            return future.result(PATIENCE_SECONDS), ""
        except TimeoutError:
            return None, STILL_COMPUTED
        except (PacelineError, ImportError) as error:
            return None, str(error)
        except Exception as error:
            return None, f"Optuna could not compute them: {type(error).__name__}: {error}"

    def _compute(self, future: Future[dict[str, float]], search: ExperimentSummary) -> None:
        try:
            with self._one_at_a_time:
                future.set_result(importances(search, MOST_TRIALS))
        except BaseException as error:
            future.set_exception(error)
