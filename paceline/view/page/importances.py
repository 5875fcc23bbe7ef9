"""Which parameters of a search matter: computed in another process, because it takes seconds and much memory."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from concurrent.futures import Future

import msgspec

from paceline.tune.experiment.summary import ExperimentSummary
from paceline.view.importance_process import Question, Reply
from paceline.view.page.encoding import encode
from paceline.view.searches import score

MOST_TRIALS = 300
"""Some 10 ms each, and more of them say little more."""
PATIENCE_SECONDS = 2.0
"""An answer waits so long for the importances; a later one has them."""
LIMIT_SECONDS = 120.0
STILL_COMPUTED = "The importances are being computed. Ask again in a moment."
_MOST_KEPT = 20


class ImportanceStore:
    """Importances that were asked for. They are computed again when a tenth more trials have ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._kept: dict[str, tuple[int, Future[Reply]]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def get(self, id: str, search: ExperimentSummary) -> Reply:
        """The importances, or why they are not known."""
        if not isinstance(search.metric, str) or search.mode not in ("min", "max"):
            return Reply(why="Importances need a search with one metric and its mode.")
        ended = sum(trial.ended is not None for trial in search.trials)
        with self._lock:
            count, future = self._kept.get(id, (-1, Future()))
            if count < 0 or (future.done() and ended > count * 1.1):
                future = Future()
                self._kept.pop(id, None)
                self._kept[id] = (ended, future)
                if len(self._kept) > _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                question = _question(search, search.metric, search.mode)
                threading.Thread(target=self._compute, args=(future, question), daemon=True).start()
        try:
            return future.result(PATIENCE_SECONDS)
        except TimeoutError:
            return Reply(why=STILL_COMPUTED)

    def close(self) -> None:
        """End what is under way."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()

    def _compute(self, future: Future[Reply], question: bytes) -> None:
        with self._one_at_a_time:
            try:
                future.set_result(self._asked(question))
            except (OSError, msgspec.DecodeError, subprocess.SubprocessError) as error:
                future.set_result(Reply(why=f"They could not be computed: {error}"))

    def _asked(self, question: bytes) -> Reply:
        command = [sys.executable, "-m", "paceline.view.importance_process"]
        with self._lock:
            if self._is_closed:
                return Reply(why="The server has ended.")
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._process = process
        try:
            content, _ = process.communicate(question, LIMIT_SECONDS)
        finally:
            with self._lock:
                self._process = None
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()
        return msgspec.json.decode(content, type=Reply)


def _question(search: ExperimentSummary, metric: str, mode: str) -> bytes:
    """Of trials with a value, at most so many, early and late ones alike."""
    scored = [(trial.params, value) for trial in search.trials if (value := score(trial, metric)) is not None]
    step = max(len(scored) / MOST_TRIALS, 1.0)
    chosen = [scored[int(place * step)] for place in range(int(len(scored) / step))]
    return encode(Question(mode, MOST_TRIALS, [params for params, _ in chosen], [value for _, value in chosen]))
