"""A search that is looked at again and again: each time only what its journal has got since is read."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.air.errors import RestoreError
from paceline.storage.files import storage_error
from paceline.storage.journal_parts import RemoteJournal
from paceline.tune.experiment.records import (
    FORMAT,
    Facts,
    RecordCheck,
    SearchLeft,
    SearchStarted,
    TrialAgain,
    TrialCreated,
    TrialTable,
)


class FollowedSearch:
    """What the journal of a search says so far. Rows are left out."""

    def __init__(self, journal: Path | RemoteJournal) -> None:
        self.journal = journal
        self._begin()

    def _begin(self) -> None:
        self.facts: Facts | None = None
        """As the last restore left them; None while the journal is empty."""
        self.started = 0.0
        self.last_time = 0.0
        """The last time that a record tells."""
        self.left: SearchLeft | None = None
        """How the last driver left the search; None while one is at work, or if it was killed."""
        self.table = TrialTable()
        self.directories: set[str] = set()
        """The names of all that ever were those of trials."""
        self._check = RecordCheck(self.journal)
        self._offset, self._file = 0, 0

    @property
    def is_empty(self) -> bool:
        """Nothing was read yet."""
        return self._offset == 0

    def read_on(self) -> set[int]:
        """Read what is new. Returns the numbers of the trials that it is about."""
        try:
            if isinstance(self.journal, Path):
                found = os.stat(self.journal)
                if found.st_ino != self._file or found.st_size < self._offset:  # replaced by another one
                    self._begin()
                    self._file = found.st_ino
                if found.st_size == self._offset:
                    return set()
            records, self._offset = FORMAT.scan_on(self.journal, self._offset, without="row")
        except FileNotFoundError:
            raise RestoreError(f"{self.journal} does not exist.") from None
        except OSError as error:
            raise storage_error(error, str(self.journal), "reading the journal") from error
        changed = set()
        for record in records:
            if self.facts is None and not isinstance(record, SearchStarted):
                raise RestoreError(f"{self.journal} does not begin with a search's description.")
            self._check(record)
            self.table.take(record)
            if isinstance(record, Facts):
                self.started = self.started or record.time
                self.facts = record
            elif isinstance(record, TrialCreated | TrialAgain):
                self.directories.add(record.dir)
            self.last_time = getattr(record, "time", 0.0) or self.last_time
            if (number := getattr(record, "n", None)) is not None:
                changed.add(number)
            self.left = record if isinstance(record, SearchLeft) else None
        return changed
