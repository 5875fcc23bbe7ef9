"""What a command's failure means to the shell: 1 the command failed, 2 wrong usage or no such path, 3 damaged."""

from __future__ import annotations

import errno

from paceline.air.errors import (
    CheckpointCorruptError,
    ConfigError,
    JournalCorruptError,
    PacelineError,
    RunNotFoundError,
)

FAILED, USAGE, DAMAGED, INTERRUPTED = 1, 2, 3, 130


class CommandError(PacelineError):
    """A sentence for the user, and the exit code that goes with it."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: BaseException) -> int:
    """The exit code of a command that ended with this error."""
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, CheckpointCorruptError | JournalCorruptError):
        return DAMAGED
    if isinstance(error, ConfigError | RunNotFoundError | FileNotFoundError | NotADirectoryError):
        return USAGE
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):  # nothing can be there
        return USAGE
    return FAILED
