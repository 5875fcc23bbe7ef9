"""What must hold of a run's directory and processes, whatever went wrong in it.

`check_run` is called at the end of every fault test. It looks at the disk, at /proc and at what
fit() gave, and trusts nothing that the library says about itself where it can look on its own:
manifests, hashes, the journal and the process table are read here independently.

1. no process, shared memory or temporary file of the run is left, and nothing listens
2. every checkpoint that can be reached agrees with its manifest
3. the surviving rows are 1..N without gap or repetition, and the journal lost none of them
4. the error names what was injected, and the rest as its consequence
5. fit() came back by itself (the timeout of the test is the bound)
6. there were exactly as many attempts as the failures and the budget allow
7. nothing half-made is left, no checkpoint that nobody keeps, and not a megabyte in files that a run does not have
8. no secret of the configuration, the environment or a URI is in a file of the run or in the error
"""

from __future__ import annotations

import fnmatch
import json
import os
import socket
import traceback
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from paceline.air.errors import TrainingFailedError
from paceline.air.result import Result
from paceline.engine.protocol import RUN_ID_VARIABLE
from paceline.testing.processes import Process, children, descendants, process, wait_for

SECONDS_TO_GO = 10.0
"""How long the processes of a run may still be seen after its end; a busy machine takes its time to end them."""

LEFTOVERS = (".checkpoint_*.tmp-*", ".trash-*", "*.tmp", "*.partial")

KNOWN = (
    "journal.jsonl",
    "result.json",
    "progress.csv",
    "params.json",
    "error.txt",
    "lock",
    "origin",
    "stdout",
    "stderr",
    "events.out.tfevents.*",
    "logs/*",
    "trackers/*",
    "rank_*/*",
    "*.corrupt*",
)
"""What a trial directory has besides checkpoints. The working directories of the ranks belong to the user."""

SPARE_BYTES = 1 << 20
"""What may be there that nobody has thought of."""

CANARY = "canary-3f81c2d07e"
"""A secret of every fault test: in its configuration and in its environment."""


def check_run(
    trial_dir: str | Path,
    *,
    result: Result | None = None,
    error: TrainingFailedError | None = None,
    iterations: int | None = None,
    attempts: int | None = None,
    cause: Mapping[str, object] | None = None,
    processes: Iterable[Process] = (),
    swept: bool = True,
    secrets: Iterable[str] = (),
) -> None:
    """Assert the invariants of a run that has ended.

    `iterations` is the N of the surviving rows, `attempts` how many there must have been, `cause`
    the fields of the root cause. `processes` are ones known to belong to the run (of a driver that
    was killed). `swept=False` allows leftovers: nobody lived to remove them. `secrets` are texts that must
    not be found anywhere, in addition to `CANARY`.
    """
    trial_dir = Path(trial_dir)
    if error is not None and result is None:
        result = error.result
    if result is not None:
        assert Path(result.path) == trial_dir, f"the result is of {result.path}, not of {trial_dir}"
    check_no_processes(trial_dir, processes)
    check_checkpoints(trial_dir, result)
    check_rows(trial_dir, result, iterations)
    if cause is not None:
        assert error is not None, "fit() raised nothing"
        check_cause(error, cause)
    if attempts is not None:
        check_attempts(trial_dir, result, attempts)
    if swept:
        check_clean(trial_dir, result)
        check_bytes(trial_dir)
    check_secrets(trial_dir, error, {CANARY, *secrets})


# -- 1: processes -------------------------------------------------------------------------


def check_no_processes(trial_dir: Path, processes: Iterable[Process] = ()) -> None:
    """No process of the run is alive: by its marks, by descent, and among those known to the test."""
    suspects = {*processes, *run_processes(trial_dir)}
    try:
        wait_for(
            lambda: not any(suspect.alive for suspect in suspects) and not worker_descendants(),
            "the run's processes to be gone",
            SECONDS_TO_GO,
        )
    except AssertionError as late:
        alive = [suspect for suspect in [*suspects, *worker_descendants()] if suspect.alive]
        listing = "\n".join(f"  pid {suspect.pid} ({suspect.state}) {suspect.command}" for suspect in alive)
        raise AssertionError(f"processes of the run are left:\n{listing}") from late
    opened = set(listening_sockets(os.getpid())) - sockets_before
    assert not opened, f"the driver listens on {sorted(opened)}"
    shared = [name for name in os.listdir("/dev/shm") if "paceline" in name] if os.path.isdir("/dev/shm") else []
    assert not shared, f"shared memory is left: {shared}"


def run_processes(trial_dir: Path) -> list[Process]:
    """The workers of the run and what they started, found by the run's id in their environment."""
    header = next(journal_records(trial_dir), {}) if (trial_dir / "journal.jsonl").exists() else {}
    if "experiment_id" not in header:
        return []
    mark = f"{RUN_ID_VARIABLE}={header['experiment_id']}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in variables and (suspect := process(int(entry.name))):
            found.append(suspect)
    return found


def worker_descendants() -> list[Process]:
    """What lives below this process's wardens, which themselves live as long as the driver."""
    wardens = [child for child in children(os.getpid()) if "engine/local/boot.py" in child.command]
    return [worker for warden in wardens for worker in descendants(warden.pid)]


sockets_before: set[str] = set()
"""Sockets on which this process listened before the run; a test session with servers of its own says so here."""


def _listens(descriptor: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as opened:
            return bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:  # closed meanwhile
        return False


def listening_sockets(pid: int) -> list[str]:
    """The sockets on which a process waits for connections: TCP, and Unix ones with or without a name."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("socket:[") and (pid != os.getpid() or _listens(int(descriptor.name))):
            inodes.add(target[8:-1])
    if not inodes:  # reading the tables below takes the system 20 ms, and each test asks
        return []
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(f"{table} {fields[1]}")
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "00010000" and fields[6] in inodes:
            found.append(f"unix {fields[7] if len(fields) > 7 else fields[6]}")
    return found


# -- 2: checkpoints -----------------------------------------------------------------------


def check_checkpoints(trial_dir: Path, result: Result | None) -> None:
    """Every committed checkpoint agrees with its manifest; what the result refers to is committed."""
    for directory in committed_checkpoints(trial_dir):
        verify(directory)
    if result is None:
        return
    reachable = [checkpoint for checkpoint, _ in result.best_checkpoints]
    reachable += [result.checkpoint] if result.checkpoint is not None else []
    for checkpoint in reachable:
        kind, where = checkpoint.get_internal_representation()
        if kind == "local_path" and Path(where).parent == trial_dir:
            assert (Path(where) / "MANIFEST.json").is_file(), f"{where} is reachable but was never committed"


def committed_checkpoints(trial_dir: Path) -> list[Path]:
    """The checkpoint directories, oldest first."""
    return sorted(
        path
        for path in trial_dir.glob("checkpoint_*")
        if path.suffix != ".corrupt" and (path / "MANIFEST.json").is_file()
    )


def verify(directory: Path) -> None:
    """Compare every file of a checkpoint with its manifest: names, sizes, content."""
    import xxhash

    manifest = json.loads((directory / "MANIFEST.json").read_text())
    assert manifest["algorithm"] == "xxh3_128", f"unknown hash {manifest['algorithm']} in {directory}"
    present = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert present - {"MANIFEST.json"} == set(manifest["files"]), f"{directory} holds other files than its manifest"
    for name, facts in manifest["files"].items():
        content = (directory / name).read_bytes()
        assert len(content) == facts["size"], f"{directory / name} has another size"
        assert xxhash.xxh3_128_hexdigest(content) == facts["hash"], f"{directory / name} has another content"


# -- 3: rows ------------------------------------------------------------------------------


def check_rows(trial_dir: Path, result: Result | None, iterations: int | None) -> None:
    """The history is 1..N, the same in the result, in its files and in the journal."""
    if result is None:
        return
    frame = result.metrics_dataframe
    survivors = [] if frame is None or frame.empty else [int(value) for value in frame["training_iteration"]]
    jumps = [(one, after) for one, after in pairwise([0, *survivors]) if after != one + 1]
    assert not jumps, f"the rows are not 1..{len(survivors)}, they go {', '.join(f'{a} -> {b}' for a, b in jumps)}"
    if iterations is not None:
        assert len(survivors) == iterations, f"{len(survivors)} rows survive instead of {iterations}"
    if frame is not None and "iteration" in frame:
        assert [int(value) for value in frame["iteration"]] == survivors, "rows and their content are out of step"
    logged = result_file_iterations(trial_dir)
    assert logged == survivors, f"result.json has {len(logged)} rows, the dataframe {len(survivors)}"
    written = journal_rows(trial_dir)
    assert written == survivors, (
        f"the journal has {len(written)} surviving rows, the dataframe {len(survivors)}; "
        f"they differ in {sorted(set(written) ^ set(survivors)) or 'their order'}"
    )


def journal_rows(trial_dir: Path) -> list[int]:
    """The rows of rank 0 in the journal, in order, without those that a later attempt has superseded."""
    rows: list[int] = []
    for record in journal_records(trial_dir):
        if record["kind"] == "attempt":
            rows = [index for index in rows if index <= record["start_index"]]
        elif record["kind"] == "row" and record["rank"] == 0:
            rows.append(record["index"])
    return rows


def result_file_iterations(trial_dir: Path) -> list[int]:
    path = trial_dir / "result.json"
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(json.loads(line)["training_iteration"]) for line in lines]


def journal_records(trial_dir: Path) -> Iterator[dict[str, Any]]:
    """The whole records of a run's journal."""
    return whole_records((trial_dir / "journal.jsonl").read_bytes())


def whole_records(journal: bytes) -> Iterator[dict[str, Any]]:
    """The records of a journal up to the first one that is not whole."""
    for line in journal.splitlines(keepends=True):
        checksum, _, rest = line.partition(b" ")
        length, _, body = rest.partition(b" ")
        body = body.removesuffix(b"\n")
        if not line.endswith(b"\n") or int(length) != len(body) or int(checksum, 16) != zlib.crc32(body):
            return
        yield json.loads(body)


# -- 4: cause -----------------------------------------------------------------------------


def check_cause(error: TrainingFailedError, wanted: Mapping[str, object]) -> None:
    """The root cause has the wanted fields; what else failed is listed as its consequence, once for each rank."""
    root = error.root_cause
    assert root is not None, f"the error names no root cause: {error}"
    found = {key: getattr(root, key) for key in wanted}
    assert found == dict(wanted), f"root cause {found} instead of {dict(wanted)}: {root}"
    assert f"rank {root.rank}" in str(error), f"the message does not name rank {root.rank}: {error}"
    others = [failure.rank for failure in error.collateral]
    assert len({root.rank, *others}) == 1 + len(others), f"rank {root.rank} failed, and as a consequence {others}"
    assert all(failure.collateral for failure in error.collateral), f"not marked as a consequence: {error.collateral}"
    assert not root.collateral, f"the root cause is marked as a consequence: {root}"
    assert error.result is not None
    assert error.result.error is error


# -- 6: attempts --------------------------------------------------------------------------


def check_attempts(trial_dir: Path, result: Result | None, attempts: int) -> None:
    """So many attempts began, by the journal and by the result; their numbers are 0, 1, 2, ..."""
    begun = [record["attempt"] for record in journal_records(trial_dir) if record["kind"] == "attempt"]
    assert begun == list(range(attempts)), f"the journal has the attempts {begun} instead of {attempts}"
    if result is not None:
        assert result.attempts == attempts, f"the result says {result.attempts} attempts instead of {attempts}"


# -- 7: the directory ---------------------------------------------------------------------


def check_clean(trial_dir: Path, result: Result | None) -> None:
    """Nothing half-made is left, and every checkpoint directory is one that the result keeps."""
    left = [
        str(path)
        for path in trial_dir.rglob("*")
        if any(fnmatch.fnmatch(path.name, pattern) for pattern in LEFTOVERS) and path.parent.name[:5] != "rank_"
    ]
    assert not left, f"leftovers: {left}"
    if result is None:
        return
    kept = {Path(checkpoint.path).name for checkpoint, _ in result.best_checkpoints if checkpoint.path}
    if result.checkpoint is not None and result.checkpoint.path:
        kept.add(Path(result.checkpoint.path).name)
    present = {path.name for path in trial_dir.glob("checkpoint_*") if path.suffix != ".corrupt"}
    foreign = {name for name in kept if not (trial_dir / name).exists()}
    assert present == kept - foreign, f"on disk are {sorted(present)}, kept are {sorted(kept)}"


def check_bytes(trial_dir: Path) -> None:
    """What the directory weighs is what its checkpoints, its journal and the other known files weigh."""
    total, accounted, strange = 0, 0, []
    weights = {path: _manifest_bytes(path) for path in committed_checkpoints(trial_dir)}
    for path in _files_below(trial_dir):
        size, name = path.lstat().st_size, path.relative_to(trial_dir)
        total += size
        if trial_dir / name.parts[0] in weights:
            continue
        if any(fnmatch.fnmatch(str(name), pattern) for pattern in KNOWN):
            accounted += size
        else:
            strange.append((size, str(name)))
    unaccounted = total - accounted - sum(weights.values())
    largest = ", ".join(f"{name} ({size:,} bytes)" for size, name in sorted(strange, reverse=True)[:5])
    assert abs(unaccounted) <= SPARE_BYTES, f"{unaccounted:,} bytes in {trial_dir} belong to nothing: {largest}"


def _manifest_bytes(checkpoint: Path) -> int:
    manifest = checkpoint / "MANIFEST.json"
    files = json.loads(manifest.read_text())["files"]
    return manifest.stat().st_size + sum(int(facts["size"]) for facts in files.values())


def _files_below(directory: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(directory):
        for name in names:
            yield Path(folder, name)


# -- 8: secrets ---------------------------------------------------------------------------


def check_secrets(trial_dir: Path, error: BaseException | None, secrets: Iterable[str]) -> None:
    """None of the texts is in a file of the run, in the name of one, or in what the error says."""
    wanted = [secret.encode() for secret in secrets]
    for path in _files_below(trial_dir):
        name = os.fsencode(path.relative_to(trial_dir))
        found = [secret for secret in wanted if secret in name or _contains(path, secret)]
        assert not found, f"{path} has the secret {found[0].decode()}"
    if error is not None:
        told = "".join(traceback.format_exception(error)).encode() + repr(error).encode()
        found = [secret for secret in wanted if secret in told]
        assert not found, f"the error tells the secret {found[0].decode()}: {error}"


def _contains(path: Path, text: bytes) -> bool:
    """Whether a file has a text; it may be larger than the memory."""
    if path.is_symlink() or not path.is_file():
        return False
    rest = b""
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            if text in rest + chunk:
                return True
            rest = chunk[-len(text) :]
    return False
