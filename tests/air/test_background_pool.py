"""Work in the background: order, results, errors, endings, forks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest

from paceline.air.background_pool import BackgroundPool


def test_results_and_errors_are_in_the_futures() -> None:
    pool = BackgroundPool("test")
    assert pool.submit(lambda: 6 * 7).result(60) == 42
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(60)
    assert pool.submit(lambda: threading.current_thread().name).result(60) == "test"
    assert pool.close()


def test_no_thread_is_started_before_there_is_work_and_no_more_than_allowed() -> None:
    before = threading.active_count()
    pool = BackgroundPool("test", threads=2)
    assert threading.active_count() == before
    go_on = threading.Event()
    futures = [pool.submit(go_on.wait) for _ in range(5)]
    assert threading.active_count() == before + 2
    go_on.set()
    assert [future.result(60) for future in futures] == [True] * 5
    pool.close()
    assert threading.active_count() == before


def test_work_of_one_key_is_done_in_order_while_others_overtake_it() -> None:
    pool = BackgroundPool("test", threads=3)
    go_on, done = threading.Event(), list[int]()

    def first() -> None:
        go_on.wait(60)
        done.append(0)

    held = [pool.submit(first, key="a")]
    held += [pool.submit(lambda number=number: done.append(number), key="a") for number in range(1, 50)]  # type: ignore[misc]
    assert pool.submit(lambda: "overtakes", key="b").result(60) == "overtakes"
    assert pool.submit(lambda: "overtakes").result(60) == "overtakes"
    assert done == []
    go_on.set()
    for future in held:
        future.result(60)
    assert done == list(range(50))
    pool.close()


def test_a_thread_that_is_idle_takes_work_while_another_is_between_two_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BackgroundPool("test", threads=2)
    finish, finished, go_on = pool._finish, threading.Event(), threading.Event()
    first, second = threading.Event(), threading.Event()

    def finish_slowly(key: object) -> None:
        finish(key)
        if key == "slow" and not finished.is_set():
            finished.set()
            go_on.wait(60)

    monkeypatch.setattr(pool, "_finish", finish_slowly)
    pool.submit(lambda: first.wait(60), key="slow")
    pool.submit(lambda: None).result(60)
    while not pool._idle:
        threading.Event().wait(0.001)
    behind = pool.submit(lambda: second.wait(60), key="slow")
    first.set()
    finished.wait(60)  # what is behind it is ready now, and its thread is about to take it
    freeing = pool.submit(second.set)
    go_on.set()
    freeing.result(30)
    assert behind.result(60)
    pool.close()


def test_closing_waits_for_everything_that_was_submitted() -> None:
    pool, done = BackgroundPool("test", threads=2), list[int]()
    for number in range(100):
        pool.submit(lambda number=number: done.append(number), key=number % 2)  # type: ignore[misc]
    assert pool.close()
    assert sorted(done) == list(range(100))
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(lambda: None)


def test_closing_with_a_deadline_does_not_wait_for_what_is_stuck() -> None:
    pool, go_on = BackgroundPool("test"), threading.Event()
    stuck, behind = pool.submit(go_on.wait), pool.submit(lambda: "done later")
    assert not pool.close(0.01)
    go_on.set()
    assert stuck.result(60)
    assert behind.result(60) == "done later"
    assert pool.close()


def test_what_has_not_begun_can_be_dropped() -> None:
    pool, begun, go_on = BackgroundPool("test"), threading.Event(), threading.Event()

    def first() -> str:
        begun.set()
        go_on.wait(60)
        return "done"

    under_way = pool.submit(first, key="a")
    assert begun.wait(60)
    waiting = [pool.submit(lambda: None, key="a"), pool.submit(lambda: None, key="b"), pool.submit(lambda: None)]
    pool.cancel()
    assert all(future.cancelled() for future in waiting)
    go_on.set()
    assert under_way.result(60) == "done"
    assert pool.submit(lambda: "again", key="b").result(60) == "again"
    pool.close()


def test_a_thread_that_waits_keeps_nothing_alive() -> None:
    class Thing:
        def work(self) -> None:
            pass

    pool, thing = BackgroundPool("test"), Thing()
    gone = weakref.ref(thing)
    pool.submit(thing.work, key="a").result(60)
    pool.submit(lambda: None).result(60)  # the thread has let go of what it did before
    del thing
    gc.collect()
    assert gone() is None
    pool.close()


def test_a_forked_child_has_an_empty_pool_of_its_own() -> None:
    pool, go_on = BackgroundPool("test"), threading.Event()
    stuck = pool.submit(go_on.wait)
    child = os.fork()
    if child == 0:
        try:
            pool.cancel()
            closed = pool.close()
            os._exit(0 if closed and pool.submit(lambda: 3).result(60) == 3 else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    go_on.set()
    assert stuck.result(60)
    pool.close()


def test_the_interpreter_does_not_wait_for_what_is_stuck() -> None:
    script = (
        "import threading; from paceline.air.background_pool import BackgroundPool\n"
        "begun = threading.Event()\n"
        "BackgroundPool('test').submit(lambda: (begun.set(), threading.Event().wait())); begun.wait()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
