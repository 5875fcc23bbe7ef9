"""Others on the machine knock at the door of a driver whose workers are on other machines, while it trains."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import cloudpickle
import pytest

from paceline.testing.invariants import check_run
from paceline.testing.scripts import Action, make_trainer
from tests.engine.remote.engine import AgentsEngine
from tests.faults.laboratory import Laboratory
from tests.faults.test_security import Canary

TIMES = 400
FLOOD = f"""
import encodings.idna, os, socket, sys
os.setgid(65534)
os.setuid(65534)  # not before the imports: others may not read the interpreter's files
address, payload = (sys.argv[1], int(sys.argv[2])), bytes.fromhex(sys.argv[3])
words = [payload, b"", b"GET / HTTP/1.1\\r\\n\\r\\n", payload[:1]]
connected = []
for number in range({TIMES}):
    try:
        connected.append(socket.create_connection(address, timeout=30))
        connected[-1].sendall(words[number % 4])
    except OSError:  # Some are turned away at once.
        continue
print(len(connected), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_flood_of_strangers_neither_runs_code_nor_holds_up_a_run(lab: Laboratory) -> None:
    """S8: a process of another user connects many times, sends pickles or nothing, and stays."""
    song = lab.root / "song"
    engine = AgentsEngine()
    host, port = engine.listener.address
    command = [sys.executable, "-c", FLOOD, host, str(port), cloudpickle.dumps(Canary(song)).hex()]
    stranger = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    connections: list[int] = []

    def let_workers_continue() -> None:
        assert stranger.stdout is not None
        connections.append(int(stranger.stdout.readline()))
        lab.marks.open_gate("worker")

    waiter = threading.Thread(target=let_workers_continue)
    waiter.start()
    waiting = [Action("wait", 3, rank, str(lab.marks.directory)) for rank in (0, 1)]
    try:
        result = make_trainer(lab.plan(*waiting, iterations=6), engine=engine).fit()
        waiter.join()
    finally:
        stranger.communicate()
        engine.close()
    check_run(result.path, result=result, iterations=6, attempts=1)
    assert connections == [TIMES]
    assert not song.exists(), "a pickle of a stranger was executed"
