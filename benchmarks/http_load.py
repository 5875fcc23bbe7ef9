"""Load on an HTTP server: by wrk where there is one, else by a client written here, which takes more of the machine.

`python -m benchmarks.http_load URL CONNECTIONS SECONDS` is the client; bodies and token come by the environment, as wrk
gets them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.harness import ROOT, MeasureError

OWN_WRK = Path(sys.prefix) / "wrk" / "usr"
"""Where `make bench` unpacks the Debian package."""
LUA = Path(__file__).with_suffix(".lua")


@dataclass(frozen=True)
class Load:
    """What a server did in a stretch of time."""

    rate: float
    """Requests per second."""
    p50: float
    p99: float


def wrk() -> str | None:
    """The program, or None."""
    return shutil.which("wrk") or shutil.which("wrk", path=str(OWN_WRK / "bin"))


def put_load(url: str, token: str, bodies: Path, connections: int, seconds: int) -> Load:
    """Keep `connections` busy for a while; each line of the file `bodies` is the body of a request, in turn."""
    libraries = os.pathsep.join(str(path) for path in (OWN_WRK / "lib").glob("*-linux-gnu"))
    env = {**os.environ, "BENCH_TOKEN": token, "BENCH_BODIES": str(bodies), "PYTHONPATH": str(ROOT)}
    if program := wrk():
        command = [program, "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s"]
        command += ["--timeout", "10s", "--script", str(LUA), url]
        env["LD_LIBRARY_PATH"] = libraries
    else:
        command = [sys.executable, "-m", "benchmarks.http_load", url, str(connections), str(seconds)]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds + 60, cwd=ROOT)
    if ended.returncode != 0:
        raise MeasureError(f"{command[0]} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    seen = json.loads(ended.stdout.splitlines()[-1])
    if seen["errors"] or not seen["requests"]:
        raise MeasureError(f"{seen['errors']} of {seen['requests']} requests failed")
    return Load(seen["requests"] / seen["seconds"], seen["p50"], seen["p99"])


# -- the client that stands in for wrk --------------------------------------------------------


class Connection(asyncio.Protocol):
    """Sends a request, takes the answer, sends the next, until `deadline`."""

    def __init__(self, requests: Iterator[bytes], deadline: float) -> None:
        self.requests = requests
        self.deadline = deadline
        self.latencies: list[float] = []
        self.errors = 0
        self.finished = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._send()

    def _send(self) -> None:
        self.received = b""
        self.sent = time.monotonic()
        if self.sent >= self.deadline:
            self.transport.close()
        else:
            self.transport.write(next(self.requests))

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end_of_head, body = self.received.partition(b"\r\n\r\n")
        if not end_of_head:
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if len(body) < int(length):
            return
        self.latencies.append(time.monotonic() - self.sent)
        self.errors += not head.startswith(b"HTTP/1.1 200")
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self.errors += time.monotonic() < self.deadline
        self.finished.set_result(None)


async def client(url: str, connections: int, seconds: float) -> dict[str, float]:
    host, port = urlsplit(url).netloc.split(":")
    head = f"POST /predict HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    if token := os.environ["BENCH_TOKEN"]:
        head += f"Authorization: Bearer {token}\r\n"
    bodies = Path(os.environ["BENCH_BODIES"]).read_text().splitlines()
    requests = itertools.cycle([f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode() for body in bodies])
    started = time.monotonic()
    loop = asyncio.get_running_loop()
    opened = [
        await loop.create_connection(lambda: Connection(requests, started + seconds), host, int(port))
        for _ in range(connections)
    ]
    await asyncio.gather(*(connection.finished for _, connection in opened))
    took = time.monotonic() - started
    latencies = sorted(latency for _, connection in opened for latency in connection.latencies)
    return {
        "requests": len(latencies),
        "seconds": took,
        "p50": latencies[len(latencies) // 2] if latencies else 0.0,
        "p99": latencies[len(latencies) * 99 // 100] if latencies else 0.0,
        "errors": sum(connection.errors for _, connection in opened),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(client(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))))
