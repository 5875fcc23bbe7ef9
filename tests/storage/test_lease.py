"""One driver at a time on remote storage, whatever became of the one before."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import RunLockedError
from paceline.storage import lease as lease_module
from paceline.storage import lock as lock_module
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.lease import LEASE_SECONDS, Lease
from tests.storage.leasing import HANG_GUARD_S, POLL_S, Clock, dead_pid, holder, left_behind, machine


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
    monkeypatch.setattr(store, "age_seen", lambda name: LEASE_SECONDS)
    assert not lease_module.is_held(store), "its holder is silent"
    monkeypatch.undo()
    lease.release()
    assert not lease_module.is_held(store)
