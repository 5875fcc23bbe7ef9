"""An engine for tests: the agents of the package, as plain processes of this machine or on hosts of tools/hosts.py.

Nothing places workers but the engine itself. All that joins a host and the driver are TCP connections, of the agent and
of each worker. The pipe through which an agent gets its settings stands for whoever starts it on a real machine: the
agent ends with it.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

from paceline.air.errors import EngineError
from paceline.engine.base import Placement
from paceline.engine.local.warden_client import absolute_sys_path
from paceline.engine.places import LOOPBACK, Node, lay_out
from paceline.engine.reactor import ReactorEngine
from paceline.engine.remote import messages
from paceline.engine.remote.agent import LENGTH, filesystem_id
from paceline.engine.remote.agent_line import AgentLine, catch_up, end_agents
from paceline.engine.remote.group import RemoteGroup
from paceline.engine.remote.line import AGENT, Caller, Listener
from paceline.engine.remote.tls import TlsRelay
from tools.hosts import Hosts

START_S = 60.0
SILENCE_S = 60.0
PROJECT = Path(__file__).parents[3]


class NodeOfTest:
    """A node with its agent."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.line: AgentLine | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.dials: tuple[str, int] | None = None
        """Where the agent finds the driver, if not where the driver listens."""

    @property
    def agent_line(self) -> AgentLine:
        assert self.line is not None
        return self.line

    @property
    def is_starting(self) -> bool:
        """Its agent has not answered, and has not given up."""
        return self.agent_line.facts is None and self.process is not None and self.process.poll() is None

    @property
    def is_usable(self) -> bool:
        return self.line is not None and self.line.facts is not None and not self.line.lost

    @property
    def agent(self) -> int:
        """The process id of the agent, on its node."""
        facts = self.agent_line.facts
        assert facts is not None
        return facts.pid


class AgentsEngine(ReactorEngine):
    """Ranks are dealt in blocks to the nodes; groups of one take turns. A node whose agent is lost gets a new one; a
    node on which none can be started is left out."""

    name = "agents"
    agent_arguments = ("-m", "paceline.engine.remote.agent")
    """Of the Python that becomes an agent."""

    def __init__(
        self, nodes: int = 2, hosts: Hosts | None = None, tls_variables: tuple[str, str, str] | None = None
    ) -> None:
        super().__init__()
        self._tls_variables = tls_variables
        tls = None if tls_variables is None else TlsRelay.from_variables(tls_variables)
        self._hosts = hosts
        self._numbers = itertools.count(1)
        self._agent_numbers = itertools.count(1)
        self.token = secrets.token_bytes(32)
        listening = socket.create_server((LOOPBACK, 0)) if hosts is None else hosts.listen()
        with mock.patch.object(socket, "create_server", return_value=listening):
            self.listener = Listener(LOOPBACK, self.token, self.reactor, self._on_connected, tls)
        names = [f"n{number}" for number in range(1, nodes + 1)] if hosts is None else hosts.names
        self.nodes = [NodeOfTest(name, LOOPBACK if hosts is None else hosts[name].address) for name in names]
        self._lines: dict[int, AgentLine] = {}
        self._by_number: dict[int, RemoteGroup] = {}
        self._ended: list[subprocess.Popen[bytes]] = []
        self._preparing = threading.Lock()

    def prepare(self) -> list[NodeOfTest]:
        """Have an agent on every node; returns the nodes that have one."""
        with self._preparing:
            catch_up(self.reactor)
            for node in self.nodes:
                if node.line is None or node.line.lost:
                    self._start_agent(node)
            deadline = time.monotonic() + START_S
            while any(node.is_starting for node in self.nodes):
                assert time.monotonic() < deadline, "the agents did not answer"
                self.reactor.run_once(0.1)
            for node in self.nodes:
                if not node.is_usable:
                    node.agent_line.lose(f"the agent of {node.name} could not be started")
            return [node for node in self.nodes if node.is_usable]

    def resources(self) -> dict[str, float]:
        nodes = [node for node in self.nodes if node.is_usable] or self.prepare()
        return {"CPU": float(sum(self._node(node).cores for node in nodes)), "GPU": 0.0}

    def _start_agent(self, node: NodeOfTest) -> None:
        if node.process is not None:
            self._ended.append(node.process)
        number = next(self._agent_numbers)
        node.line = self._lines[number] = AgentLine(
            f"{node.name} ({node.address})", self.reactor, is_encrypted=self._tls_variables is not None
        )
        paths = ":".join([str(PROJECT), *absolute_sys_path()])
        command = ["env", f"PYTHONPATH={paths}", sys.executable, *self.agent_arguments]
        if self._hosts is None:
            node.process = subprocess.Popen(command, 0, stdin=subprocess.PIPE, start_new_session=True, cwd="/")
        else:
            node.process = self._hosts.popen(node.name, command, bufsize=0, stdin=subprocess.PIPE)
        settings = messages.encode(self.settings(node, number))
        assert node.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # The host is gone.
            node.process.stdin.write(LENGTH.pack(len(settings)) + settings)

    def settings(self, node: NodeOfTest, number: int) -> messages.AgentSettings:
        return messages.AgentSettings(
            node.dials or self.listener.address,
            self.token,
            number,
            silence_s=SILENCE_S,
            node=node.name,
            tls_variables=self._tls_variables,
        )

    def _on_connected(self, caller: Caller, sock: socket.socket) -> None:
        if caller.kind == AGENT and caller.number in self._lines:
            self._lines[caller.number].attach(sock)
        elif caller.kind != AGENT and caller.number in self._by_number:
            self._by_number[caller.number].on_connected(caller.rank, sock)
        else:
            sock.close()

    def start_group(self, placement: Placement) -> RemoteGroup:
        nodes = self.prepare()
        if not nodes:
            raise EngineError("no node has an agent")
        number, size = next(self._numbers), placement.world_size
        first = number if size == 1 else 0
        chosen = [nodes[(first + rank * len(nodes) // size) % len(nodes)] for rank in range(size)]
        places = lay_out(placement, [self._node(node) for node in chosen])
        group = RemoteGroup(number, placement, places, [node.agent_line for node in chosen], self.reactor)
        self._by_number[number] = group
        self.groups.add(group)
        group.launch()
        return group

    def _node(self, node: NodeOfTest) -> Node:
        facts = node.agent_line.facts
        assert facts is not None
        is_drivers = facts.filesystem == filesystem_id()
        return Node(node.name, node.address, facts.hostname, facts.cores, is_drivers=is_drivers)

    def release(self) -> None:
        end_agents([node.line for node in self.nodes if node.line is not None], self.reactor)
        self.listener.close()
        for process in [*self._ended, *(node.process for node in self.nodes if node.process is not None)]:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(START_S)
