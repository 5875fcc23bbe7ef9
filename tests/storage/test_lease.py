"""One driver at a time on remote storage, whatever became of the one before."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import RunLockedError, StorageError
from paceline.storage import lease as lease_module
from paceline.storage import lock as lock_module
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.lease import GIVE_UP_SECONDS, LEASE_SECONDS, Lease
from paceline.storage.lock import describe_this_process

HANG_GUARD_S = 60
POLL_S = 20.0
"""Fewer requests to the server of the tests than with the usual pause."""


class Clock:
    """The time as leases see it. What others do while a contender waits is `meanwhile`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waited = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def pause(self, seconds: float) -> None:
        self.waited += seconds
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease_module, "now", lambda: clock.now)
    monkeypatch.setattr(lease_module, "pause", clock.pause)
    monkeypatch.setattr(lease_module, "POLL_SECONDS", POLL_S)
    return clock


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> FsspecFilesystem:
    found: FsspecFilesystem = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def leases(store: FsspecFilesystem) -> Iterator[Callable[[], Lease]]:
    """Makes leases of one place; their threads end with the test."""
    made: list[Lease] = []

    def make(filesystem: Any = None) -> Lease:
        made.append(Lease(filesystem or store))
        return made[-1]

    yield make
    for lease in made:
        lease.release()


@contextmanager
def machine(name: str) -> Iterator[None]:
    """What happens in the block happens on another machine, as far as leases can tell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock_module, "boot_id", lambda: f"boot of {name}")
        patch.setattr(socket, "gethostname", lambda: name)
        yield


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_behind(store: FsspecFilesystem, **changes: Any) -> str:
    """The lease of a driver that does nothing any more."""
    text = json.dumps({**describe_this_process(), "token": "its own", "renewals": 3, **changes})
    store.write_text("lease/000001", text)
    return text


def holder(store: FsspecFilesystem) -> dict[str, Any]:
    newest = store.list("lease")[-1]
    found: dict[str, Any] = json.loads(store.read_text(newest))
    return found


def test_it_excludes_and_is_given_back(store: FsspecFilesystem, leases: Callable[[], Lease], clock: Clock) -> None:
    first, second = leases(), leases()
    first.acquire()
    with pytest.raises(RunLockedError, match=f"pid {os.getpid()} .*host.*since 20"):
        second.acquire()
    second.release()
    with pytest.raises(RunLockedError):
        second.acquire()
    first.release()
    second.acquire()
    first.release()
    second.check()
    assert store.list() == ["lease/000002"]  # the one before is cleaned up, the last stays as a counter
    second.release()
    assert clock.waited == 0


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"pid": None}, id="the process is gone"),
        pytest.param({"start": 1}, id="the container was restarted, or the pid is another process's now"),
        pytest.param({}, id="a run of this process that is over"),
    ],
)
def test_a_holder_that_is_dead_for_certain_is_replaced_at_once(
    store: FsspecFilesystem, leases: Callable[[], Lease], clock: Clock, changes: dict[str, Any]
) -> None:
    left_behind(store, **({"pid": dead_pid()} if "pid" in changes else changes))
    leases().acquire()
    assert clock.waited == 0
    assert (holder(store)["pid"], holder(store)["start"]) == (os.getpid(), lock_module.start_time(os.getpid()))


@pytest.mark.parametrize("changes", [{"boot_id": "another"}, {"pid_namespace": "pid:[1]"}, {"host": "elsewhere"}])
def test_what_cannot_be_known_here_is_waited_for(
    store: FsspecFilesystem, leases: Callable[[], Lease], clock: Clock, changes: dict[str, Any]
) -> None:
    pid = dead_pid()
    left_behind(store, pid=pid, **changes)
    said: list[str] = []
    leases().acquire(said.append)
    assert clock.waited == pytest.approx(LEASE_SECONDS)
    assert len(said) == 1
    assert re.search(rf"\b60 s\b.*pid {pid} .*host", said[0])
    assert holder(store)["pid"] == os.getpid()


@pytest.mark.parametrize("text", ["garbage", "[]", ""])
def test_a_lease_that_cannot_be_read_expires_too(
    store: FsspecFilesystem, leases: Callable[[], Lease], clock: Clock, text: str
) -> None:
    store.write_text("lease/000007", text)
    leases().acquire()
    assert clock.waited > 0
    assert store.list() == ["lease/000008"]


def test_the_time_before_the_contender_came_counts(
    store: FsspecFilesystem, leases: Callable[[], Lease], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind(store, boot_id="another")
    monkeypatch.setattr(store, "age", lambda name: {"lease/000001": LEASE_SECONDS - 10}[name])
    said: list[str] = []
    leases().acquire(said.append)
    assert clock.waited == pytest.approx(10)
    left_behind(store, boot_id="another")
    store.delete("lease/000002")
    monkeypatch.setattr(store, "age", lambda name: LEASE_SECONDS + 300)
    leases().acquire(said.append)
    assert clock.waited == pytest.approx(10)
    assert len(said) == 1  # nothing to announce


def test_a_live_driver_elsewhere_is_not_replaced(
    store: FsspecFilesystem, leases: Callable[[], Lease], clock: Clock
) -> None:
    with machine("first"):
        first = leases()
        first.acquire()
    clock.meanwhile = first.renew
    with machine("second"), pytest.raises(RunLockedError, match=r"host first.*renewed"):
        leases().acquire()
    assert clock.waited == POLL_S  # the first sign of life is enough
    first.check()


def test_a_driver_elsewhere_that_ends_while_it_is_watched_is_followed_at_once(
    store: FsspecFilesystem, leases: Callable[[], Lease], clock: Clock
) -> None:
    with machine("first"):
        first = leases()
        first.acquire()
    clock.meanwhile = first.release
    with machine("second"):
        leases().acquire()
        assert clock.waited == POLL_S
        assert holder(store)["host"] == "second"


def test_who_was_replaced_notices_when_it_comes_back(
    store: FsspecFilesystem, leases: Callable[[], Lease], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock did not tell: a virtual machine was paused, clock and all."""
    with machine("first"):
        first = leases()
        first.acquire()
    monkeypatch.setattr(store, "age", lambda name: LEASE_SECONDS)
    with machine("second"):
        second = leases()
        second.acquire()
    first.raise_if_lost()  # it cannot know
    for _ in range(2):
        with pytest.raises(StorageError, match=f"pid {os.getpid()} .*host second"):
            first.check()
    with pytest.raises(StorageError, match="host second"):
        first.renew()
    first.release()
    assert store.list() == ["lease/000002"]
    second.check()
    assert holder(store)["host"] == "second"
    assert "released" not in holder(store)


def test_who_was_replaced_twice_cannot_be_mistaken_for_the_holder(
    store: FsspecFilesystem, leases: Callable[[], Lease], clock: Clock
) -> None:
    with machine("first"):
        first = leases()
        first.acquire()
    for number in (2, 3, 4):
        store.delete(store.list("lease")[-1])
        store.write_text(f"lease/{number:06d}", json.dumps({"host": "other", "released": True}))
    store.write_text("lease/000001", "a write that was on its way for very long")
    with pytest.raises(StorageError, match="host other"):
        first.check()
    assert store.list("lease") == ["lease/000001", "lease/000004"]


def test_who_saw_a_lease_expire_that_others_have_taken_since_is_refused(
    store: FsspecFilesystem, leases: Callable[[], Lease], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind(store, boot_id="another")
    monkeypatch.setattr(store, "age", lambda name: LEASE_SECONDS)
    create_exclusive = store.create_exclusive

    def create_late(name: str, text: str) -> bool:
        """The number after the expired one is free again: its holder came and went, and so did two more."""
        store.delete("lease/000001")
        store.write_text("lease/000004", json.dumps({"host": "other", "released": True}))
        return create_exclusive(name, text)

    monkeypatch.setattr(store, "create_exclusive", create_late)
    with pytest.raises(RunLockedError, match="host other"):
        leases().acquire()
    assert store.list("lease") == ["lease/000004"]


class Broken:
    """A store whose writes fail while `is_down`."""

    def __init__(self, filesystem: FsspecFilesystem) -> None:
        self._filesystem = filesystem
        self.is_down = False

    def __getattr__(self, name: str) -> object:
        if self.is_down and name == "write_text":
            raise StorageError("the network is down")
        return getattr(self._filesystem, name)


def test_who_cannot_renew_stops_in_time_and_for_good(
    store: FsspecFilesystem, leases: Callable[..., Lease], clock: Clock
) -> None:
    broken = Broken(store)
    lease = leases(broken)
    lease.acquire()
    clock.now += GIVE_UP_SECONDS - 1
    lease.renew()
    clock.now += GIVE_UP_SECONDS - 1
    lease.check()  # the last renewal counts, not the first
    clock.now += 2
    with pytest.raises(StorageError, match=r"renewed.*\b46 s\b.*store"):
        lease.raise_if_lost()
    with pytest.raises(StorageError, match=r"renewed.*\b46 s\b"):
        lease.renew()
    with pytest.raises(StorageError, match=r"renewed.*\b46 s\b"):
        lease.check()
    broken.is_down = True
    lease.release()  # asks nothing of a store that may be out of reach
    assert "released" not in holder(store)
    leases().acquire()
    assert clock.waited == 0


def test_why_it_could_not_renew_is_told(
    memory: FsspecFilesystem, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEW_SECONDS", 0.001)
    broken = Broken(memory)
    lease = Lease(broken)  # type: ignore[arg-type]
    lease.acquire()
    broken.is_down = True
    wait_until(lambda: lease.failing != "")
    lease.raise_if_lost()  # not yet
    clock.now += GIVE_UP_SECONDS + 1
    with pytest.raises(StorageError, match=r"\b46 s\b.*the network is down"):
        lease.raise_if_lost()
    broken.is_down = False
    lease.release()


def test_who_could_not_renew_does_not_wait_for_the_store_at_the_end(
    memory: FsspecFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEW_SECONDS", 0.001)
    broken = Broken(memory)
    lease = Lease(broken)  # type: ignore[arg-type]
    lease.acquire()
    broken.is_down = True
    wait_until(lambda: lease.failing != "")
    lease.release()  # raises if it asks the store
    assert "released" not in holder(memory)
    Lease(memory).acquire()  # this process knows that it holds it no more


def test_a_renewal_that_takes_too_long_does_not_count(
    memory: FsspecFilesystem, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(memory)
    lease.acquire()
    write_text = memory.write_text

    def slow(name: str, text: str) -> None:
        write_text(name, text)
        clock.now += GIVE_UP_SECONDS + 1

    monkeypatch.setattr(memory, "write_text", slow)
    with pytest.raises(StorageError, match=r"renewed.*\b46 s\b"):
        lease.renew()
    lease.release()


def test_a_holder_renews_by_itself(store: FsspecFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "RENEW_SECONDS", 0.001)
    lease = Lease(store)
    lease.acquire()
    wait_until(lambda: holder(store)["renewals"] >= 3)
    lease.check()
    lease.release()
    assert holder(store)["released"]
    with pytest.raises(StorageError, match="released"):
        lease.check()  # an upload that was still on its way


def wait_until(condition: Callable[[], bool]) -> None:
    guard = threading.Event()
    timer = threading.Timer(HANG_GUARD_S, guard.set)
    timer.start()
    try:
        while not condition():
            assert not guard.is_set()
    finally:
        timer.cancel()
        timer.join()


def test_a_renewal_that_hangs_does_not_hold_up_the_end(
    memory: FsspecFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEW_SECONDS", 0.001)
    hanging, over, write_text = threading.Event(), threading.Event(), memory.write_text

    def hang(name: str, text: str) -> None:
        hanging.set()
        over.wait(HANG_GUARD_S)
        write_text(name, text)

    lease = Lease(memory)
    monkeypatch.setattr(memory, "write_text", hang)
    lease.acquire()
    assert hanging.wait(HANG_GUARD_S)
    monkeypatch.setattr(lease_module, "GIVE_UP_SECONDS", 0.01)
    with pytest.raises(StorageError, match="renewal"):
        lease.release()
    over.set()


def test_a_deleted_lease_is_lost(store: FsspecFilesystem, leases: Callable[[], Lease], clock: Clock) -> None:
    lease = leases()
    lease.acquire()
    store.delete("lease")
    with pytest.raises(StorageError, match="lease was deleted"):
        lease.check()
    lease.release()
    assert store.list() == []


def test_one_of_several_contenders_wins(store: FsspecFilesystem) -> None:
    left_behind(store, pid=dead_pid())
    contenders = [Lease(store) for _ in range(8)]
    barrier = threading.Barrier(len(contenders))
    refused: list[RunLockedError] = []

    def contend(lease: Lease) -> None:
        barrier.wait(HANG_GUARD_S)
        try:
            lease.acquire()
        except RunLockedError as error:
            refused.append(error)

    threads = [threading.Thread(target=contend, args=[lease]) for lease in contenders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_GUARD_S)
    assert len(refused) == 7
    assert store.list() == ["lease/000002"]
    for lease in contenders:
        lease.release()
    assert holder(store)["released"]


def test_a_forked_child_does_not_give_it_back(tmp_path: Path) -> None:
    store = FsspecFilesystem(f"file://{tmp_path}")
    lease = Lease(store)
    lease.acquire()
    child = os.fork()
    if child == 0:
        lease.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert "released" not in holder(store)
    lease.check()
    lease.release()


def test_asking_whether_somebody_holds_the_lease(
    store: FsspecFilesystem, leases: Callable[[], Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not lease_module.is_held(store)
    with machine("elsewhere"):
        lease = leases()
        lease.acquire()
    assert lease_module.is_held(store)
    monkeypatch.setattr(store, "age", lambda name: LEASE_SECONDS)
    assert not lease_module.is_held(store), "its holder is silent"
    monkeypatch.undo()
    lease.release()
    assert not lease_module.is_held(store)
