"""What only the user's own objects know: the state of a searcher of their own, and of their callbacks.

Searchers of paceline need none of this: replaying the journal leads them to where they were.
A searcher that brings `save` and `restore` of its own is saved after each trial that ends;
the journal says which file belongs to which moment, so that what came later is replayed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.air.manifest import hash_file
from paceline.air.settings import as_json
from paceline.tune.experiment.records import CallbackStates, Record, SearcherSaved
from paceline.tune.search.searcher import Searcher

if TYPE_CHECKING:
    from paceline.tune.experiment.audience import Audience
    from paceline.tune.experiment.place import ExperimentPlace
    from paceline.tune.experiment.records import ExperimentJournal


class Memory:
    """Keeps the states of the user's own objects beside the journal."""

    def __init__(
        self, place: ExperimentPlace, searcher: Searcher, audience: Audience, journal: ExperimentJournal
    ) -> None:
        self._place = place
        self._searcher = searcher
        self._audience = audience
        self._journal = journal
        self._saves_searcher = saves_itself(searcher)
        self._saved = 0
        self._last_file: Path | None = None

    def keep(self) -> None:
        """Save what there is to save; called when a trial has ended and everybody knows."""
        states = self._audience.callbacks.get_states()
        if states is not None:
            self._journal.append(CallbackStates(states=[as_json(state) for state in states]))
        if self._saves_searcher:
            self._saved += 1
            file = self._file(self._saved)
            with self._audience.guarded():
                self._searcher.save(str(file))
            self._journal.append(SearcherSaved(saved=self._saved, hash=hash_file(file)[1] if file.is_file() else None))
            self._journal.flush()
            self._forget_older(file)

    def _file(self, number: int) -> Path:
        return self._place.root / f"searcher-{self._place.experiment_id[:5]}-{number}.state"

    def _forget_older(self, newest: Path) -> None:
        if self._last_file is not None:
            with contextlib.suppress(OSError):
                self._last_file.unlink()
        self._last_file = newest

    def newest_save(self, records: list[Record]) -> int | None:
        """The position of the record up to which a saved searcher knows everything; None: replay it all."""
        if not self._saves_searcher:
            return None
        for position in range(len(records) - 1, -1, -1):
            record = records[position]
            if isinstance(record, SearcherSaved):
                self._saved = max(self._saved, record.saved)  # what is saved from now on gets a name of its own
                if self._is_sound(record):
                    return position
        return None

    def _is_sound(self, record: SearcherSaved) -> bool:
        """Whether the state is there as it was saved; journals of earlier versions do not contain its hash."""
        file = self._file(record.saved)
        if not file.is_file():
            return False
        if record.hash in (None, hash_file(file)[1]):
            return True
        self._audience.warn_once(f"{file.name} is damaged; the results so far are replayed to the searcher instead.")
        return False

    def restore_searcher(self, number: int) -> None:
        self._last_file = self._file(number)
        with self._audience.guarded():
            self._searcher.restore(str(self._last_file))


def saves_itself(searcher: Searcher) -> bool:
    """Whether it is a searcher of the user's own that can save and restore its state."""
    kind = type(searcher)
    own = not kind.__module__.startswith("paceline.")
    return own and kind.save is not Searcher.save and kind.restore is not Searcher.restore
