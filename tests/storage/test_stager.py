"""What gets into a staging directory, and what is refused."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paceline.air.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError, StorageError
from paceline.air.manifest import verify
from paceline.storage import stager as stager_module
from paceline.storage.commit import Stager, commit
from paceline.storage.run_dir import MANIFEST_NAME
from paceline.storage.tree import TreePlan, plan_tree
from tests.descriptors import open_descriptors
from tests.storage.damage import replace_by_directory
from tests.storage.small_disk import run_on_small_disk


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    (path / "deep" / "er").mkdir(parents=True)
    (path / "empty").mkdir()
    (path / "model.bin").write_bytes(os.urandom(3_000_000))
    (path / "deep" / "er" / "ünï 训练").write_text("x")
    (path / "nothing").touch()
    (path / "script.sh").write_text("#!/bin/sh")
    (path / "script.sh").chmod(0o750)
    (path / "read-only").write_text("r")
    (path / "read-only").chmod(0o400)
    return path


def staged(source: Path, target: Path, *, move: bool = False) -> Path:
    with Stager(target) as stager:
        stager.add_directory(source, move=move)
        stager.finish({})
    verify(target)
    return target


def tree(root: Path) -> dict[str, tuple[int, bytes | None]]:
    """Name -> (mode, content or None for a directory)."""
    found: dict[str, tuple[int, bytes | None]] = {}
    for path in root.rglob("*"):
        if path.name != MANIFEST_NAME:
            content = path.read_bytes() if path.is_file() else None
            found[str(path.relative_to(root))] = (stat.S_IMODE(path.stat().st_mode), content)
    return found


@pytest.mark.parametrize("move", [False, True])
def test_a_tree_arrives_exactly(source: Path, tmp_path: Path, move: bool) -> None:
    before = tree(source)
    assert tree(staged(source, tmp_path / "staging", move=move)) == before
    assert source.exists() == (not move)


def test_moving_keeps_the_same_files(source: Path, tmp_path: Path) -> None:
    number = (source / "model.bin").stat().st_ino
    assert (staged(source, tmp_path / "staging", move=True) / "model.bin").stat().st_ino == number


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a second file system")
def test_moving_from_another_file_system_copies_and_removes(source: Path, tmp_path: Path) -> None:
    before = tree(source)
    elsewhere = Path("/dev/shm") / f"stager-test-{os.getpid()}"
    shutil.copytree(source, elsewhere)
    try:
        assert tree(staged(elsewhere, tmp_path / "staging", move=True)) == before
        assert not elsewhere.exists()
    finally:
        shutil.rmtree(elsewhere, ignore_errors=True)


def test_an_empty_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    assert verify(staged(tmp_path / "source", tmp_path / "staging")).files == {}


def test_many_files(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for number in range(1000):
        (tmp_path / "source" / str(number)).write_text(str(number))
    descriptors = open_descriptors()
    assert len(verify(staged(tmp_path / "source", tmp_path / "staging")).files) == 1000
    assert not open_descriptors() - descriptors
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paceline-sync")]


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    name = os.fsdecode(b"latin-\xff\n")
    (tmp_path / "source" / name).write_text("x")
    staging = staged(tmp_path / "source", tmp_path / "staging")
    program = (
        "import sys; from pathlib import Path\n"
        "from paceline.air.manifest import verify\n"
        "print(ascii(list(verify(Path(sys.argv[1])).files)))\n"
    )
    for locale in ("C", "C.UTF-8"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(staging)],
            env={**os.environ, "LC_ALL": locale},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "['latin-\\udcff\\n']\n"


def test_files_are_written_through_open(tmp_path: Path) -> None:
    with Stager(tmp_path / "staging") as stager:
        with stager.open("dict_checkpoint.pkl") as file:
            pickle.dump({"weights": list(range(1_000_000))}, file)
        with stager.open("deep/er/a.txt") as file:
            file.write(b"a")
        manifest = stager.finish({"number": 7, "metrics": {"loss": float("inf")}})
    assert verify(tmp_path / "staging") == manifest
    assert manifest.facts == {"number": 7, "metrics": {"loss": float("inf")}}
    assert pickle.loads((tmp_path / "staging" / "dict_checkpoint.pkl").read_bytes())["weights"][-1] == 999_999


def test_a_name_staged_twice_keeps_the_later_content(source: Path, tmp_path: Path) -> None:
    with Stager(tmp_path / "staging") as stager:
        stager.add_directory(source)
        with stager.open("script.sh") as file:
            file.write(b"new")
        stager.finish({})
    verify(tmp_path / "staging")
    assert (tmp_path / "staging" / "script.sh").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["", "/abs", "../up", "a/../../b", "a//b", "./a", "nul\0", MANIFEST_NAME])
def test_names_that_leave_the_checkpoint_are_refused(tmp_path: Path, name: str) -> None:
    with Stager(tmp_path / "staging") as stager, pytest.raises(CheckpointError):
        stager.open(name)


def test_a_block_that_raises_leaves_nothing(source: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="user"), Stager(tmp_path / "staging") as stager:  # noqa: PT012
        stager.add_directory(source)
        half = stager.open("half")
        half.write(b"x")
        raise RuntimeError("user")
    half.close()
    assert not (tmp_path / "staging").exists()


def test_a_file_that_cannot_be_read_while_it_is_taken_over_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").touch()

    def plan_too_early(path: Path) -> TreePlan:
        """After the tree was looked at, somebody puts a directory in the place of the file."""
        plan = plan_tree(path)
        replace_by_directory(source / "file")
        return plan

    monkeypatch.setattr(stager_module, "plan_tree", plan_too_early)
    descriptors = open_descriptors()
    with Stager(tmp_path / "staging") as stager, pytest.raises(StorageError, match="directory"):
        stager.add_directory(source, move=True)
    assert not open_descriptors() - descriptors
    assert not (tmp_path / "staging").exists()


def test_files_left_open_are_refused(tmp_path: Path) -> None:
    with Stager(tmp_path / "staging") as stager:
        file = stager.open("a")
        with pytest.raises(CheckpointError, match=r"open.*\ba\b"):
            stager.finish({})
        file.close()


def test_links_to_the_inside_become_what_they_point_at(source: Path, tmp_path: Path) -> None:
    (source / "link").symlink_to("model.bin")
    (source / "deep" / "chain").symlink_to("../link")
    (source / "deep-link").symlink_to("deep/er")
    (tmp_path / "way").symlink_to(source)
    for move in (False, True):
        target = tmp_path / f"staging-{move}"
        staged(tmp_path / "way" if not move else source, target, move=move)
        content = (target / "model.bin").read_bytes()
        for name in ("link", "deep/chain"):
            assert not (target / name).is_symlink()
            assert (target / name).read_bytes() == content
        assert (target / "deep-link" / "ünï 训练").read_text() == "x"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("/etc/hostname", "outside"),
        ("../outside", "outside"),
        ("gone", "nothing"),
        ("bad", "loop"),
        (".", "above"),
    ],
)
@pytest.mark.parametrize("move", [False, True])
def test_other_links_are_refused_by_name(source: Path, tmp_path: Path, target: str, problem: str, move: bool) -> None:
    (tmp_path / "outside").touch()
    (source / "bad").symlink_to(target)
    with Stager(tmp_path / "staging") as stager, pytest.raises(CheckpointError, match=problem) as refused:
        stager.add_directory(source, move=move)
    assert str(source / "bad") in str(refused.value)
    assert (source / "model.bin").exists()


def test_sockets_and_pipes_are_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(source / "pipe")
    with Stager(tmp_path / "a") as stager, pytest.raises(CheckpointError, match=f"{source}/pipe"):
        stager.add_directory(source)
    (source / "pipe").unlink()
    monkeypatch.chdir(source)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        with Stager(tmp_path / "b") as stager, pytest.raises(CheckpointError, match=f"{source}/socket"):
            stager.add_directory(source)


def test_a_path_that_is_no_directory(source: Path, tmp_path: Path) -> None:
    with Stager(tmp_path / "staging") as stager:
        with pytest.raises(CheckpointNotFoundError, match="gone"):
            stager.add_directory(tmp_path / "gone")
        with pytest.raises(CheckpointError, match=r"model\.bin.*directory"):
            stager.add_directory(source / "model.bin")
        with pytest.raises(CheckpointError, match=f"{tmp_path} .*run's own"):
            stager.add_directory(tmp_path)


def test_a_committed_checkpoint_can_be_reported_again(source: Path, tmp_path: Path) -> None:
    commit(staged(source, tmp_path / "staging"), tmp_path / "done")
    assert tree(staged(tmp_path / "done", tmp_path / "staging")) == tree(source)


def test_a_users_own_file_named_like_the_manifest_is_refused(source: Path, tmp_path: Path) -> None:
    (source / MANIFEST_NAME).write_text("{}")
    with Stager(tmp_path / "staging") as stager, pytest.raises(CheckpointError, match=MANIFEST_NAME):
        stager.add_directory(source)


def test_a_damaged_manifest_is_not_taken_for_a_users_own_file(source: Path, tmp_path: Path) -> None:
    for damaged in ("", '{"files": {}}'):
        (source / MANIFEST_NAME).write_text(damaged)
        with Stager(tmp_path / "staging") as stager, pytest.raises(CheckpointCorruptError, match=MANIFEST_NAME):
            stager.add_directory(source)


def test_a_missing_run_directory_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="gone/staging"):
        Stager(tmp_path / "gone" / "staging")
    assert not (tmp_path / "gone").exists()


FULL_DISK = (
    "import os, sys; from pathlib import Path\n"
    "from paceline.storage.commit import Stager\n"
    "from paceline.air.errors import StorageError\n"
    "disk = Path(sys.argv[1]); source = Path(sys.argv[1]).parent / 'source'; source.mkdir()\n"
    "(source / 'small').write_bytes(bytes(200_000)); (source / 'z-large').write_bytes(bytes(2_000_000))\n"
    "def by_copy(stager): stager.add_directory(source)\n"
    "def by_open(stager):\n"
    "    with stager.open('large') as file:\n"
    "        for _ in range(200): file.write(bytes(10_000))\n"
    "for way in (by_copy, by_open):\n"
    "    try:\n"
    "        with Stager(disk / 'staging') as stager: way(stager); stager.finish({})\n"
    "    except StorageError as error: print(error.errno, error)\n"
    "    assert os.listdir(disk) == [], os.listdir(disk)\n"
)


def test_a_full_disk_is_named_with_figures_and_the_partial_is_removed(tmp_path: Path) -> None:
    by_copy, by_open = run_on_small_disk(FULL_DISK, tmp_path).splitlines()
    assert by_copy.startswith("28 ")
    assert "staging/z-large" in by_copy
    assert "2,200,000 bytes" in by_copy
    assert "free" in by_copy
    assert by_open.startswith("28 ")
    assert "needed: " in by_open


@pytest.mark.skipif(shutil.which("strace") is None, reason="injects the error with strace")
@pytest.mark.parametrize("call", ["fsync", "close", "write"])
def test_a_failed_call_fails_the_checkpoint_and_is_not_repeated(source: Path, tmp_path: Path, call: str) -> None:
    program = (
        "import os, sys; from pathlib import Path\n"
        "from paceline.storage.commit import Stager\n"
        "from paceline.air.errors import StorageError\n"
        "import concurrent.futures.thread, xxhash, ctypes\n"
        "stager = Stager(Path(sys.argv[1]))\n"
        "with stager.open('big') as file: file.write(bytes(20_000_000))\n"
        "try: stager.finish({})\n"
        "except StorageError as error: print(error.errno, error)\n"
    )
    staging, trace = tmp_path / "staging", tmp_path / "trace"
    command = ["strace", "-f", "-o", str(trace), "-P", str(staging / "big"), "-e", f"trace={call}"]
    command += ["-e", f"inject={call}:error=EIO:when=1"]
    done = subprocess.run([*command, sys.executable, "-c", program, str(staging)], capture_output=True, text=True)
    if "ptrace" in done.stderr.lower():
        pytest.skip("strace may not trace here")
    if call == "write":  # fails while the file is being filled
        assert "StorageError: [Errno 5]" in done.stderr
    else:
        assert done.stdout.startswith("5 "), done.stderr
    assert trace.read_text().count(f"{call}(") == 1
    assert not staging.exists()
