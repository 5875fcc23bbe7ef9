"""The workers of one attempt on this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from paceline.air.errors import EngineError, StartupTimeoutError, WorkerDiedError
from paceline.engine import protocol
from paceline.engine.base import Placement, WorkerRequest
from paceline.engine.channel_group import ChannelGroup, GroupMember, MemberState
from paceline.engine.failures import describe_exit, signal_name
from paceline.engine.frames import FrameSocket, socket_pair
from paceline.engine.local import linux, messages
from paceline.engine.local.crash_file import (
    SETTLE_S,
    CrashFile,
    append_to_log,
    tail_of,
    user_stacks,
    wait_until_written,
)
from paceline.engine.local.usage import usages_of
from paceline.engine.local.warden_client import WardenClient, absolute_sys_path
from paceline.engine.places import WorkerPlace, variables
from paceline.engine.reactor import Reactor
from paceline.engine.usage import Usage
from paceline.engine.worker_loop import DRIVER_LOST_EXIT

EXIT_STATUS_WAIT_S = 1.0
"""How long the warden may take to relay how a dead worker ended."""
KILL_WAIT_S = 10.0
STOPPED_WARDEN_WAIT_S = 0.3
"""A warden ends a group in milliseconds; if it has not by then, somebody may have stopped it."""
CLOSED_HINT = "Something in the worker closed descriptors that it had not opened, as daemonizing code does."


class LocalMember(GroupMember):
    """A worker process."""

    def __init__(self, request: WorkerRequest, frames: FrameSocket) -> None:
        super().__init__(request, frames)
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.crash_file = CrashFile()
        self.exit_status: int | None = None
        self.process_ended = False
        self.killed_by_us = False

    def bad_end(self, grace: float) -> str | None:
        """A warning if its task was over but its process did not end well."""
        if self.state is not MemberState.ENDED or grace <= 0:
            return None
        return bad_end(self.rank, grace, self.killed_by_us, self.exit_status, self.request.log_path)


def bad_end(rank: int, grace: float, killed_by_us: bool, exit_status: int | None, log_path: str) -> str | None:
    """What to say of a process whose task was over, if it did not end well."""
    if killed_by_us:
        return f"rank {rank} did not exit within {grace:g} s after its function returned and was killed"
    if exit_status:
        code = os.waitstatus_to_exitcode(exit_status)
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
        return f"rank {rank} {how} after its function had returned; see {log_path}"
    return None


class LocalGroup(ChannelGroup):
    """Workers forked by a warden; a death is an event, not something to poll for."""

    shares_directory = True

    def __init__(
        self,
        number: int,
        placement: Placement,
        places: tuple[WorkerPlace, ...],
        warden: WardenClient,
        reactor: Reactor,
    ) -> None:
        super().__init__(placement, places, reactor)
        self.number = number
        """Tells the groups of one engine apart."""
        self._warden = warden
        self._locals: list[LocalMember] = []
        self._gone = False
        """The warden says that nothing of the group is left."""
        self._closed = False
        self._memory_kills_before = linux.out_of_memory_kills()
        warden.listen(number, self)

    @property
    def is_over(self) -> bool:
        """Nothing of it is left."""
        return self._closed

    # Start

    def launch(self) -> None:
        """Start all workers and wait until each is ready; on any failure none is left."""
        try:
            with self.reactor.lock:
                self._spawn_all()
            self._wait_until_ready()
        except BaseException:
            self.shutdown()
            raise

    def _spawn_all(self) -> None:
        requests = _spawn_requests(self.number, self.placement, self.places, self._warden.environment)
        for asked, request in zip(self.placement.workers, requests, strict=True):
            ours, theirs = socket_pair()
            member = LocalMember(asked, FrameSocket(ours, read_limit=protocol.WORKER_FRAME_LIMIT))
            self._locals.append(member)
            self.attach(member)
            output = () if asked.log_path else linux.own_output()
            self._warden.tell(request, [theirs.fileno(), member.crash_file.fileno(), *output])
            theirs.close()
        if self._warden.lost:  # Before this group listened, so that nobody told it.
            self.on_warden_lost()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.placement.start_timeout_s
        while True:
            seen = self.reactor.rounds
            self._raise_if_start_failed()
            waiting = [member for member in self._locals if member.state is MemberState.STARTING or member.pid is None]
            if not waiting:
                return
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise StartupTimeoutError(self._late_start_text(waiting))
            self.listen(remaining, seen)

    def _raise_if_start_failed(self) -> None:
        if self._warden.load_error is not None:
            raise EngineError(
                f"importing {', '.join(self._warden.preload)} for the workers failed:\n{self._warden.load_error}"
            )
        failure = self.first_lost()
        if failure is None:
            return
        parts = [f"rank {failure.rank} could not be started: {failure.message}", failure.traceback]
        if self._warden.lost:
            parts.append(self._warden.diagnosis())
        text = "\n".join(part for part in parts if part)
        if failure.kind == "startup":
            raise EngineError(text)
        raise WorkerDiedError(text, replace(failure, message=f"{failure.message}, while it was starting"))

    def _late_start_text(self, waiting: list[LocalMember]) -> str:
        ranks = ", ".join(str(member.rank) for member in waiting)
        parts = [
            f"rank(s) {ranks} of {self.world_size} did not get ready within "
            f"{self.placement.start_timeout_s:g} s. Where they were:"
        ]
        if not self._warden.loaded:
            self._warden.ask_for_stacks()
            time.sleep(SETTLE_S)
            self._warden.kill()  # The next start may have more luck.
            parts.append(f"still importing {', '.join(self._warden.preload)}:\n{self._warden.diagnosis()}")
        elif self._warden.kill_if_stopped():
            parts.append("the process that starts the workers is stopped; it was killed")
        else:
            for member in waiting:  # They have no crash file yet: their stacks go to the log.
                if member.pid is not None:
                    linux.send_signal(member.pid, member.pidfd, linux.STACKS_SIGNAL)
            time.sleep(SETTLE_S)
            for member in waiting:
                text = tail_of(member.request.log_path)
                parts.append(f"rank {member.rank}:\n{text or '(no stack and no output)'}")
        return "\n".join(parts)

    # What happens to workers

    def on_warden_message(self, message: messages.FromWarden, fds: tuple[int, ...]) -> None:
        if isinstance(message, messages.GroupGone):
            self._gone = True
            return
        assert not isinstance(message, messages.Loaded)
        member = self._locals[message.rank]
        if isinstance(message, messages.Spawned):
            member.pid = message.pid
            member.pidfd = fds[0] if fds else None
            if member.pidfd is not None:
                self.reactor.add(member.pidfd, lambda _mask: self._on_process_end(member))
        elif isinstance(message, messages.SpawnFailed):
            self.fail(member, "startup", message.error)
        else:
            self._on_exit_status(member, message)

    def on_warden_lost(self) -> None:
        for member in self._locals:
            if not member.gone:
                self.drain(member)
                member.gone = True
                self.fail(
                    member,
                    "engine",
                    "the process that watches over the workers was killed; the workers ended with it",
                    traceback=self._warden.diagnosis(),
                )

    def _on_process_end(self, member: LocalMember) -> None:
        """The process is gone. The warden tells how; that may take a moment."""
        assert member.pidfd is not None
        self.reactor.remove(member.pidfd)
        member.process_ended = True
        self._expect_exit_status(member)

    def on_hangup(self, member: GroupMember) -> None:
        self._expect_exit_status(self._locals[member.rank])

    def _expect_exit_status(self, member: LocalMember) -> None:
        if member.exit_status is None and member.death_deadline is None:
            member.death_deadline = time.monotonic() + EXIT_STATUS_WAIT_S

    def _on_exit_status(self, member: LocalMember, exited: messages.Exited) -> None:
        self.drain(member)
        member.gone = True
        member.exit_status = exited.status
        member.death_deadline = None
        if member.is_over:
            return
        if exited.status == DRIVER_LOST_EXIT << 8:
            self.fail(member, "engine", "the worker closed its connection to the driver", hint=CLOSED_HINT)
            return
        crash = member.crash_file.read()
        if crash:
            append_to_log(member.request.log_path, crash)
        failure = describe_exit(
            member.rank,
            os.waitstatus_to_exitcode(exited.status),
            exited.max_rss,
            memory_limit=linux.memory_limit(),
            out_of_memory_kills=linux.out_of_memory_kills() - self._memory_kills_before,
            crash_text=user_stacks(crash),
            log_path=member.request.log_path,
            time_ns=exited.time_ns,
        )
        self.fail_with(member, failure)

    def look_after(self, now: float) -> None:
        for member in self._locals:
            if member.death_deadline is not None and now > member.death_deadline:
                member.death_deadline = None
                self._give_up(member)

    def _give_up(self, member: LocalMember) -> None:
        """The worker is lost and nobody told how it ended."""
        self.drain(member)
        if member.process_ended:
            member.gone = True
            self.fail(member, "engine", "the process ended; how is not known")
        else:
            self.fail(member, "engine", "the worker closed its connection to the driver", hint=CLOSED_HINT)

    # Looking at workers

    def processes(self) -> dict[int, int]:
        return {member.rank: member.pid for member in self._locals if member.pid is not None}

    def stacks(self, timeout: float = 1.0) -> dict[int, str]:
        return self._stacks_of(self._locals, timeout)

    def usage(self, timeout: float = 1.0) -> dict[int, Usage]:
        return usages_of({member.rank: member.pid for member in self._locals if member.pid and not member.gone})

    def _stacks_of(self, members: list[LocalMember], timeout: float) -> dict[int, str]:
        asked = {
            member.rank: member.crash_file
            for member in members
            if not member.gone and member.state is not MemberState.STARTING
        }
        for rank, file in asked.items():
            file.read()  # Whatever was written before is not the answer.
            member = self._locals[rank]
            linux.send_signal(member.pid or 0, member.pidfd, linux.STACKS_SIGNAL)
        wait_until_written(list(asked.values()), timeout)
        texts = {rank: user_stacks(file.read()) for rank, file in asked.items()}
        return {rank: text for rank, text in texts.items() if text}

    # End

    def shutdown(self, grace: float = 0.0) -> list[str]:
        if self._closed or os.getpid() != self._pid:
            return []
        warnings: list[str] = []
        if grace > 0 and not self._warden.lost:
            self._let_end(grace)
        self._kill(warnings)
        with self.reactor.lock:
            self._closed = True
            self._warden.forget(self.number)
            self.close_events()
            for member in self._locals:
                self._close(member)
                warning = member.bad_end(grace)
                if warning:
                    warnings.append(warning)
        return warnings

    def _let_end(self, grace: float) -> None:
        for member in self._locals:
            self.post(member, protocol.EXIT, b"")
        self.wait_for(lambda: all(member.gone for member in self._locals), grace)

    def _kill(self, warnings: list[str]) -> None:
        for member in self._locals:
            member.killed_by_us = not member.gone
        self.reactor.run_once(0.0)
        if not self._warden.lost:
            self._warden.tell(messages.KillGroup(self.number))
            if not self._warden.loaded:
                return  # It is still importing; when it gets to this group, the group ends at once.
            if not self.wait_for(lambda: self._gone or self._warden.lost, STOPPED_WARDEN_WAIT_S):
                self._warden.kill_if_stopped()
            if not self.wait_for(lambda: self._gone or self._warden.lost, KILL_WAIT_S):
                warnings.append(f"some processes of the group did not end within {KILL_WAIT_S:g} s of SIGKILL")
        if self._warden.lost:
            self._kill_without_warden(warnings)

    def _kill_without_warden(self, warnings: list[str]) -> None:
        """The workers die with the warden; what they had started must be found and killed."""
        for member in self._locals:
            if member.pidfd is not None:
                linux.send_signal(member.pid or 0, member.pidfd, 9)
        sessions = {member.pid for member in self._locals if member.pid is not None}
        if not self._warden.kill_remains(sessions, KILL_WAIT_S):
            warnings.append(f"some processes of the group did not end within {KILL_WAIT_S:g} s of SIGKILL")

    def _close(self, member: LocalMember) -> None:
        self.detach(member)
        member.gone = True
        member.frames.close()
        if member.pidfd is not None:
            self.reactor.remove(member.pidfd)
            os.close(member.pidfd)
            member.pidfd = None
        member.crash_file.close()


def _spawn_requests(
    number: int, placement: Placement, places: tuple[WorkerPlace, ...], wardens: messages.Environment
) -> Iterator[messages.Spawn]:
    """What the warden is told about each worker; of its environment, how it differs from the warden's."""
    sys_path = [os.fsencode(entry) for entry in absolute_sys_path()]
    argv = [os.fsencode(argument) for argument in sys.argv]
    umask = linux.current_umask()
    main_file = script_file()
    heartbeat = placement.heartbeat_timeout_s
    drivers_own = messages.with_variables(dict(os.environb), {protocol.RUN_ID_VARIABLE: placement.run_id})
    for asked, place in zip(placement.workers, places, strict=True):
        wanted = messages.with_variables(drivers_own, variables(placement, place))
        changed, removed = messages.difference(wardens, wanted)
        yield messages.Spawn(
            group=number,
            run_id=placement.run_id,
            rank=asked.rank,
            world_size=placement.world_size,
            fresh=placement.fresh or not linux.IS_LINUX,
            threads=place.threads,
            # The user's own setting was read when the libraries were imported.
            pool_threads=None if b"OMP_NUM_THREADS" in wanted else place.threads,
            thread_setters=placement.thread_setters,
            pulse_s=None if heartbeat is None else heartbeat / 5,
            surroundings=messages.Surroundings(
                changed_variables=changed,
                removed_variables=removed,
                cwd=os.fsencode(os.path.abspath(asked.cwd)),
                log_path=os.fsencode(os.path.abspath(asked.log_path)) if asked.log_path else b"",
                sys_path=sys_path,
                argv=argv,
                main_file=main_file,
                umask=umask,
            ),
        )


def script_file() -> bytes | None:
    """The user's script, if there is one: a file that helpers of a worker can be told about."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.fsencode(os.path.abspath(file)) if isinstance(file, str) and os.path.exists(file) else None
