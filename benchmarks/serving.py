"""Row P2: requests for one prediction each, to paceline's server and to plain FastAPI that calls the model for each.

Both are one process on the same uvicorn, event loop (uvloop) and HTTP parser (httptools), and share the machine with
the client. paceline checks its token with each request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks import http_load, tree_workload
from benchmarks.harness import OURS, PEERS, Bench
from benchmarks.http_load import Load
from benchmarks.prediction import model_files
from benchmarks.table import Row, Target, spread
from benchmarks.trees import train_files

CONNECTIONS = (16, 64)
BODIES = 64
PEER = "FastAPI, one by one"
SERVERS = {"ours": OURS / "serve_model.py", "theirs": PEERS / "fastapi_serving.py"}


def requests(bench: Bench) -> Iterator[Row]:
    """Servers in turn, each started anew; one stretch of load warms it up, then one for each number of connections."""
    model = model_files(bench, "xgboost", train_files(bench))
    bodies = _write_bodies(bench.scratch / "bodies.txt")
    seen: dict[tuple[str, int], list[Load]] = {(side, count): [] for side in SERVERS for count in CONNECTIONS}
    for _ in range(bench.repeats(5, 2)):
        for side, script in SERVERS.items():
            with bench.start(script, str(model)) as server:
                server.wait_for_files(["ready"])
                address = json.loads((server.place / "ready").read_text())
                load = address["url"], address["token"], bodies
                http_load.put_load(*load, CONNECTIONS[0], 1)
                for count in CONNECTIONS:
                    seen[side, count].append(http_load.put_load(*load, count, bench.repeats(5, 2)))
                server.process.terminate()
                server.finish(may_fail=side == "theirs")  # uvicorn ends by the signal that it was sent
    for count in CONNECTIONS:
        yield from _rows(count, seen["ours", count], seen["theirs", count])


def _rows(count: int, ours: list[Load], theirs: list[Load]) -> Iterator[Row]:
    what = f"serving single rows, XGBoost, {count} connections"
    client = "wrk" if http_load.wrk() else "no wrk here: an asyncio client, which slows both sides"
    rates = [load.rate for load in ours], [load.rate for load in theirs]
    note = f"{client}; spread {spread(rates[0])}, FastAPI {spread(rates[1])}"
    yield Row("P2", f"{what}: requests", "1/s", rates[0], PEER, rates[1], Target("ratio", "least", 1.0), note=note)
    for name in ("p50", "p99"):
        mine, peers = ([float(getattr(load, name)) for load in side] for side in (ours, theirs))
        target = Target("ratio", "most", 1.0) if name == "p99" else None
        yield Row("P2", f"{what}: {name}", "s", mine, PEER, peers, target, note=client)


def _write_bodies(file: Path) -> Path:
    rows = tree_workload.table(seed=2000, rows=BODIES).select(tree_workload.FEATURES).to_pylist()
    rounded = [{name: round(value, 6) for name, value in row.items()} for row in rows]
    file.write_text("".join(json.dumps({"rows": [row]}) + "\n" for row in rounded))
    return file
