"""The connection of this process to a Ray cluster, and calls that end in time although the cluster does not answer."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import ConfigError, EngineError, EngineLost
from paceline.engine.choose import RAY_ADDRESS_VARIABLE

T = TypeVar("T")

REACH_S = 5.0
"""How long a cluster may take to accept a connection."""
CONNECT_S = 30.0
START_S = 120.0
"""How long a Ray of our own may take to start."""
ANSWER_S = 30.0
"""How long one question to the cluster may take."""
GONE_S = 30.0
"""How long the head may be out of reach until the cluster counts as gone. Ray ends a connected process after 60 s."""
END_S = 10.0
"""How long leaving the cluster may take, or ending one of our own."""
TEND_S = 0.5
PROBE_S = 2.0
LOOK_S = 0.5
LOCAL = "local"
AUTO = "auto"

_warned_of_open_cluster = False


class Connection:
    """A thread of its own connects and stays: what Ray starts for a process ends with the thread that started it."""

    def __init__(self, address: str | None, settings: Mapping[str, Any], tend: Callable[[], None]) -> None:
        """`tend` is called about twice a second, in that thread."""
        self.lost = ""
        """Why the cluster is gone, if it is."""
        self.address = ""
        """Of its head: host:port."""
        self.owns_ray = not ray.is_initialized()
        self._tend = tend
        self._closing = threading.Event()
        self._leaving = threading.Lock()
        self._has_left = False
        self._questions: set[Future[Any]] = set()
        """Those that have not been answered yet."""
        self._is_given_up = False
        """Nobody waits for the connection any more: if it comes, it is not to stay."""
        self._silent_s = 0.0
        """How long the head has been out of reach."""
        self._reached_at = time.monotonic()
        """When a probe that succeeded was begun."""
        connected: Future[None] = Future()
        wanted = _chosen(address)
        connect: Callable[[], Any] = bool
        if self.owns_ray:
            wanted = _resolved(wanted, settings.get("_temp_dir"))
            _check_reachable(wanted)
            connect = _connector(wanted, settings)
        elif address is not None or settings:
            ignored = ", ".join(sorted([*settings, *(["address"] if address is not None else [])]))
            warn_at_users_line(f"paceline.init({ignored}) has no effect: this program has called ray.init() already.")
        self._thread = threading.Thread(target=self._live, args=(connect, connected), name="paceline-ray", daemon=True)
        self._thread.start()
        try:
            self._wait_until(connected, wanted)
            self.is_own_cluster = self.owns_ray and wanted == LOCAL
            self._job = ray.get_runtime_context().get_job_id()
            _warn_of_open_cluster(self.address)
        except BaseException:  # Also Ctrl-C.
            self._is_given_up = True
            self._closing.set()
            raise

    def _wait_until(self, connected: Future[None], wanted: str) -> None:
        within_s = START_S if wanted == LOCAL else CONNECT_S
        try:
            connected.result(within_s)
        except TimeoutError:
            raise EngineError(_no_connection(wanted, f"no answer within {within_s:g} s")) from None
        except Exception as error:
            text = _token_text(wanted) if _is_about_a_token(error) else _no_connection(wanted, _first_line(error))
            raise EngineError(text) from error

    @property
    def is_usable(self) -> bool:
        return not self.lost and ray.is_initialized() and ray.get_runtime_context().get_job_id() == self._job

    # The thread

    def _live(self, connect: Callable[[], Any], connected: Future[None]) -> None:
        try:
            connect()
            if not self._is_given_up:  # Without a connection, asking would start a new Ray.
                self.address = ray.get_runtime_context().gcs_address
        except BaseException as error:
            connected.set_exception(error)
            return
        connected.set_result(None)
        _import_what_the_end_needs()
        last_probe = self._reached_at = time.monotonic()
        while not self._closing.wait(TEND_S):
            if time.monotonic() - last_probe >= PROBE_S and not self.lost:
                last_probe = self._probe(last_probe)
            with contextlib.suppress(Exception):
                self._tend()
            if self.lost and self.owns_ray and not self._has_left:
                self._wait_for_questions()
                self._leave()  # Otherwise Ray would end this process.
        if self._is_given_up:
            self._leave()

    def _probe(self, last_probe: float) -> float:
        """Whether the head can be reached. Takes and returns when a probe was over: what it took counts, too."""
        began = time.monotonic()
        try:
            socket.create_connection(_host_and_port(self.address), REACH_S).close()
        except OSError:
            # A longer gap is this process's own: it was stopped, or the machine was asleep.
            self._silent_s += min(time.monotonic() - last_probe, PROBE_S + REACH_S)
        else:
            self._silent_s = 0.0
            self._reached_at = began
        if self._silent_s > GONE_S:
            self.lose(
                f"the Ray cluster at {self.address} is gone: its head has not answered for {GONE_S:g} s. Start a "
                "cluster again (ray start --head ...) and restore the run there; its checkpoints are kept."
            )
        return time.monotonic()

    def _wait_for_questions(self) -> None:
        """Those that are being asked: Ray may end a process that asks while it leaves."""
        deadline = time.monotonic() + END_S
        while self._questions and time.monotonic() < deadline and not self._closing.wait(TEND_S):
            pass

    def _leave(self) -> None:
        """Once: whatever connects this process to Ray after that is not ours."""
        with self._leaving:
            if self.owns_ray and not self._has_left:
                self._has_left = True
                with contextlib.suppress(Exception):
                    ray.shutdown()

    def lose(self, why: str) -> None:
        self.lost = self.lost or why

    # Questions

    def ask(self, call: Callable[..., T], *arguments: Any, within_s: float = ANSWER_S, undo: Any = None) -> T:
        """The answer of `call(*arguments)`, which asks the cluster something.

        Raises EngineLost when the cluster is gone and EngineError when it does not answer in time. Which of the two it
        is may take a moment longer to find out. If nobody waits for the answer any more when it comes, `undo` is called
        with it.
        """
        return self._answer(call, arguments, within_s, undo, GONE_S + 2 * REACH_S)

    def _answer(
        self, call: Callable[..., T], arguments: tuple[Any, ...], within_s: float, undo: Any, doubt_s: float
    ) -> T:
        """`doubt_s` is how much longer it may take while nobody knows whether the head is there."""
        answer = self.begin(call, *arguments)
        deadline = time.monotonic() + within_s
        try:
            while True:
                try:
                    return answer.result(min(LOOK_S, within_s))
                except TimeoutError:
                    if answer.done():
                        if not isinstance(answer.exception(), TimeoutError):
                            continue  # It has come in this moment.
                        self._wait_for_verdict(doubt_s)
                        raise EngineError(f"the Ray cluster at {self.address} did not answer in time") from None
                except RayError as error:
                    self._wait_for_verdict(doubt_s)
                    raise EngineError(f"the Ray cluster at {self.address}: {_first_line(error)}") from error
                if self.lost:
                    raise EngineLost(self.lost)
                now = time.monotonic()
                if now > deadline and (now > deadline + doubt_s or self._reached_at > deadline):
                    raise EngineError(f"the Ray cluster at {self.address} did not answer within {within_s:g} s")
        except BaseException:
            if undo is not None:
                answer.add_done_callback(lambda late: None if late.exception() is not None else undo(late.result()))
            raise

    def _wait_for_verdict(self, doubt_s: float) -> None:
        """If the head is out of reach, find out whether it is gone. Raises EngineLost then."""
        deadline = time.monotonic() + doubt_s
        while self._silent_s and not self.lost and time.monotonic() < deadline:
            time.sleep(TEND_S)
        if self.lost:
            raise EngineLost(self.lost)

    def tell(self, call: Callable[..., Any], *arguments: Any, within_s: float = 5.0) -> None:
        """The same for what may fail, because everything goes away with this process anyway."""
        if self.is_usable:
            with contextlib.suppress(Exception):
                self._answer(call, arguments, within_s, None, doubt_s=0.0)

    def begin(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """The same without waiting."""
        if self.lost:
            raise EngineLost(self.lost)
        if not self.is_usable:  # Ray would start itself anew.
            raise EngineLost("this program has called ray.shutdown(); the next run connects again")
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(call(*arguments))
            except BaseException as error:
                answer.set_exception(error)
            finally:
                self._questions.discard(answer)

        self._questions.add(answer)
        threading.Thread(target=work, name="paceline-ray-question", daemon=True).start()
        return answer

    def close(self) -> None:
        if self.owns_ray and ray.is_initialized():
            ending = threading.Thread(target=self._leave, name="paceline-ray-end", daemon=True)
            try:
                ending.start()
                ending.join(END_S)
            except RuntimeError:  # The interpreter ends and starts no threads any more.
                self._leave()
        self._closing.set()
        self._thread.join(2 * REACH_S)


def _import_what_the_end_needs() -> None:
    """ray.shutdown() imports this, also when Python ends because of Ctrl-C. Code that is compiled then, as for the
    dataclasses in there, makes Python forget why it ends: it would exit with 1 instead of dying of SIGINT."""
    with contextlib.suppress(Exception):
        importlib.import_module("ray.dag.compiled_dag_node")


def _chosen(address: str | None) -> str:
    named = os.environ.get(RAY_ADDRESS_VARIABLE)
    chosen = (named if address in (None, "", AUTO) else None) or address or LOCAL
    if "://" in chosen:
        raise ConfigError(
            f"{chosen!r} is an address of Ray Client, which paceline does not use. Run the program on a node of the "
            "cluster with address='auto', or submit it: ray job submit -- python your_script.py"
        )
    return chosen


def _resolved(address: str, temp_dir: str | None) -> str:
    """What "auto" means on this machine: the cluster may be one that is gone."""
    if address != AUTO:
        return address
    try:
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError:  # Another version of Ray: it finds out by itself.
        return address
    try:
        return str(canonicalize_bootstrap_address(AUTO, temp_dir) or AUTO)
    except ConnectionError as error:
        raise EngineError(_no_connection(AUTO, _first_line(error))) from None


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _check_reachable(address: str) -> None:
    """Ray would try for a minute, and then end the process."""
    if address in (LOCAL, AUTO):
        return
    try:
        socket.create_connection(_host_and_port(address), REACH_S).close()
    except ValueError:
        raise ConfigError(
            f"{address!r} is not the address of a Ray cluster: give host:port, 'auto' or 'local'."
        ) from None
    except OSError as error:
        raise EngineError(_no_connection(address, str(error))) from None


def _no_connection(address: str, why: str) -> str:
    if address == LOCAL:
        return f"Ray did not start on this machine: {why}"
    where = "on this machine" if address == AUTO else f"at {address}"
    return (
        f"no connection to a Ray cluster {where}: {why}\n"
        "Check that the head is running (ray status), that this machine is one of its nodes (ray start --address=...), "
        f"and that the address is right (init(address=...), {RAY_ADDRESS_VARIABLE}). RunConfig(engine='local') "
        "trains on this machine alone."
    )


def _is_about_a_token(error: BaseException | None) -> bool:
    while error is not None:
        if "RAY_AUTH" in str(error) or "AuthToken" in str(error) or "Unauthenticated" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _token_text(address: str) -> str:
    return (
        f"the Ray cluster at {address} rejects this program: it asks for a token. Set RAY_AUTH_MODE=token, and copy "
        "the file ~/.ray/auth_token of the head to this machine. If the file is there, it is that of another cluster."
    )


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _connector(address: str, settings: Mapping[str, Any]) -> Callable[[], Any]:
    chosen = {"log_to_driver": False, "logging_level": logging.WARNING, **settings}
    if address == LOCAL:
        chosen.setdefault("include_dashboard", False)
    elif ignored := sorted(chosen.keys() & {"num_cpus", "num_gpus"}):
        warn_at_users_line(f"{' and '.join(ignored)} have no effect: the nodes of the cluster say what they have.")
        chosen = {name: value for name, value in chosen.items() if name not in ignored}

    def connect() -> None:
        logger = logging.getLogger("ray._private.worker")
        logger.addFilter(_is_of_interest)
        try:
            ray.init(address=address, **chosen)
        finally:
            logger.removeFilter(_is_of_interest)

    return connect


def _is_of_interest(record: logging.LogRecord) -> bool:
    """Signals are the run's; Ray need not handle them, nor say that it does not."""
    return "SIGTERM handler" not in record.getMessage()


def _warn_of_open_cluster(address: str) -> None:
    global _warned_of_open_cluster
    host, _ = _host_and_port(address)
    if _warned_of_open_cluster or host in ("127.0.0.1", "::1", "localhost") or _asks_for_token():
        return
    _warned_of_open_cluster = True
    warn_at_users_line(
        f"Ray's authentication is off, and the cluster at {address} listens on the network: whoever reaches it can "
        "run code as you. Make a token with `ray get-auth-token --generate`, copy it to every node, set "
        "RAY_AUTH_MODE=token on every node and here, and start the cluster again."
    )


def _asks_for_token() -> bool:
    try:
        from ray._raylet import AuthenticationMode, get_authentication_mode
    except ImportError:  # Another version of Ray: nobody knows.
        return True
    return bool(get_authentication_mode() == AuthenticationMode.TOKEN)
