"""What the driver knows about one worker on another machine."""

from __future__ import annotations

from collections import deque

from paceline.air.attachment import Attachment, parts_of
from paceline.engine.base import WorkerRequest
from paceline.engine.channel_group import GroupMember, MemberState
from paceline.engine.frames import ATTACHED, SHARED, FrameSocket
from paceline.engine.local.group import bad_end
from paceline.engine.remote import messages
from paceline.engine.remote.agent_line import AgentLine
from paceline.engine.remote.shipments import is_shared


class RemoteMember(GroupMember):
    """A worker on a machine with an agent."""

    def __init__(self, request: WorkerRequest, frames: FrameSocket, line: AgentLine) -> None:
        """`frames` are closed ones, until the worker has dialled."""
        super().__init__(request, frames)
        self.line = line
        self.pid: int | None = None
        self.has_dialled = False
        self.exited: messages.Exited | None = None
        self.killed_by_us = False
        self.waiting: deque[tuple[int, bytes, tuple[Attachment, ...]]] = deque()
        """What is posted to it when its agent has the attachments, and what comes after that."""

    @property
    def is_ready(self) -> bool:
        return self.state is not MemberState.STARTING and self.pid is not None

    @property
    def has_ended(self) -> bool:
        """Its connection may be open still, in the hands of a child."""
        return self.gone or self.exited is not None

    def bad_end(self, grace: float) -> str | None:
        """A warning if its task was over but its process did not end well."""
        if self.state is not MemberState.ENDED or grace <= 0:
            return None
        status = None if self.exited is None else self.exited.status
        return bad_end(self.rank, grace, self.killed_by_us, status, self.request.log_path)

    def post_waiting(self, group: int) -> None:
        """As much as can be. The agent hands the worker its attachments in the order in which it is told of them."""
        while self.waiting:
            tag, body, attachments = self.waiting[0]
            if not all(self.line.ship(attachment) for attachment in attachments if is_shared(attachment)):
                return
            self.waiting.popleft()
            for attachment in attachments:
                if is_shared(attachment):
                    self.line.lend(attachment, group, self.rank)
                    self.frames.queue(SHARED)
                else:
                    for part in parts_of(attachment.view()):
                        self.frames.queue(ATTACHED, part)
            self.frames.post(tag, body)
