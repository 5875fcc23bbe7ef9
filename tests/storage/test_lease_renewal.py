"""A driver renews its lease; one that cannot, or that was replaced, stops in time."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable

import pytest

from paceline.air.errors import StorageError
from paceline.storage import lease as lease_module
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.lease import GIVE_UP_SECONDS, LEASE_SECONDS, Lease
from paceline.storage.outage import StoreAwayError
from tests.storage.leasing import HANG_GUARD_S, Clock, holder, machine


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


def test_who_is_patient_writes_nothing_meanwhile_and_takes_the_next_number(
    store: FsspecFilesystem, leases: Callable[..., Lease], clock: Clock
) -> None:
    lease = leases()
    lease.acquire()
    lease.patience_s = 100.0
    clock.now += GIVE_UP_SECONDS + 99
    lease.raise_if_lost()
    with pytest.raises(StoreAwayError, match="out of reach"):
        lease.check()
    lease.renew()
    lease.check()
    assert store.list() == ["lease/000002"]
    clock.now += GIVE_UP_SECONDS + 101
    with pytest.raises(StorageError, match=r"renewed.*\b146 s\b"):
        lease.raise_if_lost()
    with pytest.raises(StorageError, match=r"renewed.*\b146 s\b"):
        lease.renew()


def test_who_was_replaced_while_it_was_patient_has_lost(
    store: FsspecFilesystem, leases: Callable[..., Lease], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine("first"):
        first = leases()
        first.acquire()
        first.patience_s = 100.0
    clock.now += LEASE_SECONDS
    monkeypatch.setattr(store, "age", lambda name: LEASE_SECONDS)
    with machine("second"):
        leases().acquire()
    for _ in range(2):
        with pytest.raises(StorageError, match=r"host second, since .* has taken over"):
            first.renew()
    with pytest.raises(StorageError, match="host second"):
        first.raise_if_lost()
    assert store.list() == ["lease/000002"]


def test_a_number_whose_answer_got_lost_is_its_own(
    store: FsspecFilesystem, leases: Callable[..., Lease], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = leases()
    lease.acquire()
    lease.patience_s = 100.0
    clock.now += LEASE_SECONDS

    def create_and_break(name: str, text: str) -> bool:
        create(name, text)
        raise StoreAwayError("the connection broke")

    create = store.create_exclusive
    with monkeypatch.context() as patch:
        patch.setattr(store, "create_exclusive", create_and_break)
        with pytest.raises(StoreAwayError):
            lease.renew()
    lease.renew()
    lease.check()
    assert store.list() == ["lease/000002"]


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
