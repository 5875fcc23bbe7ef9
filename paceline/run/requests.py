"""Asks the driver of a live run, or of a live search, to stop or for the stacks of its ranks.

The driver may be in another terminal, or on another machine that shares the directory. See inbox.py.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline.air.errors import RequestError, RestoreError, RunNotFoundError, StorageError
from paceline.air.secrets import without_credentials
from paceline.run.found_runs import does_not_exist, summary_of_run_dir
from paceline.run.inbox import Answer, Kind, Request, open_folder, put, read_own_file
from paceline.storage import lock
from paceline.storage.files import PRIVATE_DIR_MODE, storage_error
from paceline.storage.run_dir import SEARCH_JOURNALS, RunDir, requests_of_search, resolve_storage
from paceline.storage.twin import twin_here

_POLL_S = 0.02
_LOOK_AT_LOCK_S = 0.5
_MOST_TRIES = 100
_LAST_WAIT_S = 5.0
"""For the answer to a request that the driver took at the last moment."""
_MOST_BYTES = 64 * 1024 * 1024
"""Of an answer; the stacks of a thousand ranks are a few MiB."""

_ENDINGS = {
    "finished": " (it has finished)",
    "failed": " (it failed)",
    "interrupted": " (it was interrupted)",
    "killed": " (it was killed)",
}


def request_stop(run_dir: Path | str, *, timeout_s: float = 10.0) -> None:
    """Ask for a graceful stop: the run, or every trial of the search, ends at its next report, as after Ctrl-C.

    Of what is on remote storage the URI will do, on the machine of its driver.

    Returns when the driver has agreed. Of a trial, only that trial is stopped. Raises RequestError if nobody drives the
    run, or if the driver does not answer in time: then it will not stop.
    """
    _ask(_find(run_dir), "stop", timeout_s)


def request_stacks(run_dir: Path | str, *, timeout_s: float = 10.0) -> dict[int, str]:
    """The stacks of all threads of each rank of a live run, as text. Also of ranks that hang."""
    desk = _find(run_dir)
    if desk.is_search:
        raise RequestError(f"{desk.place} is a search: name the directory of one of its trials.")
    return {int(rank): text for rank, text in sorted(_ask(desk, "stacks", timeout_s).stacks.items(), key=_rank)}


def _rank(item: tuple[str, str]) -> int:
    return int(item[0])


@dataclass(frozen=True)
class _Desk:
    """Where a driver looks for requests."""

    place: Path
    lock: Path
    requests: Path
    is_search: bool = False


def _find(path: Path | str) -> _Desk:
    place = resolve_storage(path)
    if isinstance(place, str):
        label, twin = without_credentials(place), twin_here(place)
        if twin is None:
            raise RequestError(f"{label} has no driver on this machine: ask on the machine where it was started.")
        return _find(twin)
    if place.is_file() and place.match(SEARCH_JOURNALS):
        return _of_search(place)
    if missing := does_not_exist(str(path), None, "a run or of a search"):
        raise missing
    run_dir = RunDir(place)
    if run_dir.journal.is_file():
        return _Desk(place, run_dir.lock, run_dir.requests)
    journals = sorted(place.glob(SEARCH_JOURNALS))
    if not journals:
        raise RunNotFoundError(f"{place} holds neither a run nor a search.")
    alive = [journal for journal in journals if lock.is_held(journal.with_suffix(".lock"))]
    if len(alive) > 1:
        raise RequestError(f"{place} has {len(alive)} live searches: name {' or '.join(map(str, alive))}.")
    return _of_search((alive or journals)[0])


def _of_search(journal: Path) -> _Desk:
    return _Desk(journal.parent, journal.with_suffix(".lock"), requests_of_search(journal), is_search=True)


def _ask(desk: _Desk, what: Kind, timeout_s: float) -> Answer:
    deadline = time.monotonic() + timeout_s
    if not lock.is_held(desk.lock):
        raise RequestError(f"{desk.place} is not running{_how_it_ended(desk)}, so it cannot be asked for anything.")
    owner = os.stat(desk.place).st_uid
    if owner != os.geteuid():
        raise RequestError(f"{desk.place} belongs to uid {owner}; only that user can ask its driver for something.")
    name = secrets.token_hex(16)
    request = Request(what=what, driver=_driver(desk, deadline), pid=os.getpid(), host=socket.gethostname())
    try:
        folder = _hand_in(desk.requests, name, msgspec.json.encode(request))
        try:
            answer = _wait(desk, folder, name, deadline)
        finally:
            _clear_up(desk.requests, folder, name)
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(error, desk.requests, "asking the driver") from error
    if answer is None:
        raise RequestError(
            f"The driver of {desk.place} did not answer within {timeout_s:g} s; the request was withdrawn. It may be "
            "stopped, or busy in a callback or with its disk."
        )
    if answer.refused:
        raise RequestError(f"{desk.place}: {answer.refused}")
    return answer


def _driver(desk: _Desk, deadline: float) -> dict[str, Any]:
    """The one who is meant. It writes its name just after it has taken the lock."""
    while not (holder := lock.holder_of(desk.lock)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return holder


def _hand_in(requests: Path, name: str, content: bytes) -> int:
    """Put a request there; the descriptor of its folder, which another one who asks may just be removing."""
    for _ in range(_MOST_TRIES):
        with contextlib.suppress(FileExistsError):
            os.mkdir(requests, PRIVATE_DIR_MODE)
        with contextlib.suppress(FileNotFoundError):
            folder = open_folder(str(requests))
            try:
                put(f"{name}.request", folder, content)
                return folder
            except BaseException:
                os.close(folder)
                raise
    raise FileNotFoundError(2, "the folder for requests keeps being removed")


def _clear_up(requests: Path, folder: int, name: str) -> None:
    for left in (f"{name}.request", f"{name}.taken", f"{name}.answer"):
        with contextlib.suppress(OSError):
            os.unlink(left, dir_fd=folder)
    os.close(folder)
    with contextlib.suppress(OSError):  # others are asking
        os.rmdir(requests)


def _wait(desk: _Desk, folder: int, name: str, deadline: float) -> Answer | None:
    """None if no answer came in time; the request is withdrawn then."""
    look_at = time.monotonic() + _LOOK_AT_LOCK_S
    while True:
        is_alive, now = True, time.monotonic()
        if now >= look_at:
            is_alive, look_at = lock.is_held(desk.lock), now + _LOOK_AT_LOCK_S
        with contextlib.suppress(FileNotFoundError):
            return _decoded(read_own_file(f"{name}.answer", folder, _MOST_BYTES), desk.requests / f"{name}.answer")
        if not is_alive:
            raise RequestError(f"The driver of {desk.place} ended before it answered.")
        if now >= deadline:
            try:
                os.unlink(f"{name}.request", dir_fd=folder)
                return None
            except FileNotFoundError:  # the driver has taken it: what it does now, it does
                if now >= deadline + _LAST_WAIT_S:
                    return None
        time.sleep(_POLL_S)


def _decoded(content: bytes, file: Path) -> Answer:
    """An answer appears as a whole: if it cannot be read, the disk or somebody else has damaged it."""
    try:
        return msgspec.json.decode(content, type=Answer)
    except msgspec.DecodeError as error:
        raise RequestError(f"The driver's answer {file} is damaged ({error}). Ask again.") from error


def _how_it_ended(desk: _Desk) -> str:
    if desk.is_search:
        return ""
    with contextlib.suppress(RestoreError, StorageError):
        return _ENDINGS.get(summary_of_run_dir(RunDir(desk.place)).status, "")
    return ""
