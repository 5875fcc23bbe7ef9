"""Which directories of the driver's the machines of a group see.

Equal names mean nothing: another machine may have a directory of its own by that name, or a copy of the driver's. So
the driver writes a file with random content, and the agents say what they find in it. They read it, because what a
network file system says of a name may be seconds old.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.engine.base import Placement
from paceline.engine.places import WorkerPlace
from paceline.engine.reactor import Reactor
from paceline.engine.remote import messages

if TYPE_CHECKING:
    from paceline.engine.remote.agent_line import AgentLine

LOOK_S = 10.0
"""A machine that does not answer within this time does not see the directory: it may be about to hang there. Once it
has answered it is asked again."""
NAME = ".paceline-look-"


class SharedDirectories:
    """What the machines of one group see.

    `AgentLine.sees` remembers what a machine was asked before, `AgentLine.found` what it read in the files.
    """

    def __init__(
        self,
        placement: Placement,
        places: Sequence[WorkerPlace],
        lines: Sequence[AgentLine],
        reactor: Reactor,
        deadline: float = math.inf,
    ) -> None:
        """`deadline` (monotonic time) is when the answers are of no use any more."""
        self._directory = os.path.abspath(placement.directory) if placement.directory else ""
        self._cwds = [os.path.abspath(request.cwd) for request in placement.workers]
        self._lines = list(lines)
        """By rank."""
        self._reactor = reactor
        self._deadline = deadline
        self._all_here = all(place.node.is_drivers for place in places)
        self.shares_directory = self._all_here or self._all_see(self._directory)
        if not self._all_here:
            for cwd in {cwd for cwd in self._cwds if not self._is_below(cwd)}:
                self._look_in(cwd)

    def sees_cwd(self, rank: int) -> bool:
        """The worker's directory is the driver's; otherwise it needs one of its own."""
        if self._all_here or self._is_below(self._cwds[rank]):
            return self.shares_directory
        return self._lines[rank].sees.get(self._cwds[rank], False)

    def _is_below(self, path: str) -> bool:
        return bool(self._directory) and os.path.commonpath([path, self._directory]) == self._directory

    def _all_see(self, directory: str) -> bool:
        if not directory:
            return False
        self._look_in(directory)
        return all(line.sees.get(directory, False) for line in self._lines)

    def _look_in(self, directory: str) -> None:
        asked = [line for line in dict.fromkeys(self._lines) if directory not in line.sees and not line.lost]
        if not asked:
            return
        path, content = os.path.join(directory, NAME + secrets.token_hex(8)), secrets.token_bytes(16)
        try:
            with open(path, "xb") as file:
                file.write(content)
            self._ask(path, asked)
        except OSError:  # The driver cannot write there itself, perhaps only now: that says nothing of the machines.
            return
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
        for line in asked:
            found = line.found.pop(path, None)
            line.sees[directory] = found == content
            if found is None:
                line.late[path] = directory

    def _ask(self, path: str, lines: Sequence[AgentLine]) -> None:
        for line in lines:
            line.found[path] = None
            line.tell(messages.LookFor(path))
        deadline = min(time.monotonic() + LOOK_S, self._deadline)
        while (left := deadline - time.monotonic()) > 0:
            rounds = self._reactor.rounds
            if all(line.found[path] is not None or line.lost for line in lines):
                return
            self._reactor.run_once(left, rounds)


def found_in(path: str) -> bytes:
    """What an agent finds; nothing if it may not write beside it."""
    try:
        with open(path, "rb") as file:
            content = file.read(64)
    except OSError:
        return b""
    return content if os.access(os.path.dirname(path), os.W_OK) else b""
