"""Names, rights and sweeping of a trial directory."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.air.errors import ConfigError, StorageError
from paceline.storage.run_dir import (
    LONGEST_TRIAL_NAME,
    MANIFEST_NAME,
    RunDir,
    check_writable,
    default_storage_root,
    experiment_dir_name,
    name_from_uri,
    resolve_storage,
    trial_dir_name,
    uri_below,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the owner of files")


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_what_is_created_is_private_under_an_open_umask(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "new" / "experiment" / "trial")
    run_dir.create()
    created = [tmp_path / "new", tmp_path / "new" / "experiment", run_dir.root, run_dir.logs_dir]
    assert [permissions(path) for path in created] == [0o700] * 4


def test_directories_above_a_run_survive_a_power_cut(tmp_path: Path, synced: list[Path]) -> None:
    check_writable(tmp_path / "new" / "storage")
    RunDir(tmp_path / "new" / "storage" / "experiment" / "trial").create_new()
    assert synced == [
        tmp_path,
        tmp_path / "new",
        tmp_path / "new" / "storage",
    ]  # the journal's first sync adds the rest


def test_creating_again_is_fine(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "trial")
    run_dir.create()
    run_dir.params.write_text("{}")
    run_dir.create()
    assert run_dir.params.read_text() == "{}"


def test_a_link_in_place_of_the_trial_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "trial").symlink_to("elsewhere")
    with pytest.raises(StorageError, match="symbolic link"):
        RunDir(tmp_path / "trial").create()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@needs_root
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "trial"
    root.mkdir()
    os.chown(root, 65534, 65534)
    with pytest.raises(StorageError, match="uid 65534"):
        RunDir(root).create()


def test_only_directories_with_a_manifest_are_checkpoints(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for number in (10, 2):
        run_dir.checkpoint(number).mkdir()
        (run_dir.checkpoint(number) / MANIFEST_NAME).touch()
    run_dir.checkpoint(3).mkdir()  # no manifest
    for name in ("checkpoint_000004.corrupt", ".checkpoint_000005.tmp-0-ab", "checkpoint_7", "checkpoint_000001x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST_NAME).touch()
    (tmp_path / "checkpoint_000008").symlink_to(run_dir.checkpoint(2))
    assert run_dir.checkpoints() == [(2, run_dir.checkpoint(2)), (10, run_dir.checkpoint(10))]


def test_staging_names_never_repeat(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    names = {run_dir.staging(3, 1) for _ in range(100)}
    assert len(names) == 100
    assert all(path.name.startswith(".checkpoint_000003.tmp-1-") for path in names)


def test_sweep_removes_leftovers_only_and_follows_no_link(tmp_path: Path) -> None:
    run_dir, outside = RunDir(tmp_path / "trial"), tmp_path / "outside"
    run_dir.create()
    outside.mkdir()
    (outside / "precious").touch()
    keep = [run_dir.checkpoint(1), run_dir.root / ".hidden", run_dir.root / "trash-1", run_dir.root / "a.tmp-0"]
    for path in keep:
        path.mkdir()
    staging = run_dir.staging(2, 0)
    (staging / "deep").mkdir(parents=True)
    (staging / "deep" / "link").symlink_to(outside)
    trash = run_dir.root / ".trash-checkpoint_000001-0123abcd"
    trash.symlink_to(outside)
    swept = run_dir.sweep()
    assert sorted(path.name for path in swept) == sorted([staging.name, trash.name])
    assert sorted(path.name for path in run_dir.root.iterdir()) == sorted([*(path.name for path in keep), "logs"])
    assert (outside / "precious").exists()


@pytest.mark.parametrize("name", ["error.txt", "journal.jsonl", "origin", "params.json"])
def test_sweep_removes_small_files_of_writers_that_are_dead(name: str, tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # its exit status is still there
    half_written, being_written = (tmp_path / f".{name}.tmp-{pid}" for pid in (dead.pid, os.getpid()))
    half_written.touch()
    being_written.touch()
    assert RunDir(tmp_path).sweep() == [half_written]
    assert being_written.exists()
    dead.wait()


@pytest.mark.parametrize(
    "name",
    [
        ".x.tmp-123",
        ".notes.txt.tmp-99999999",
        ".checkpoint_000001.tmp-mine",
        ".checkpoint_000001.tmp-0-zz",
        ".trash-can",
        ".trash-checkpoint_1-0123abcd",
        ".error.txt.tmp-1-2",
    ],
)
def test_sweep_leaves_what_this_package_does_not_make(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert RunDir(tmp_path).sweep() == []
    assert (tmp_path / name).exists()


def test_sweep_of_a_directory_that_has_gone(tmp_path: Path) -> None:
    assert RunDir(tmp_path / "gone").sweep() == []


def test_a_new_directory_is_made_once(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "experiment" / "trial")
    assert run_dir.create_new()
    assert run_dir.logs_dir.is_dir()
    assert not run_dir.create_new()


def test_the_default_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(tmp_path))
    assert default_storage_root() == tmp_path
    monkeypatch.delenv("PACELINE_RESULTS_DIR")
    assert default_storage_root() == Path.home() / "paceline_results"


def test_names_of_experiments_and_trials() -> None:
    assert experiment_dir_name("TorchTrainer").startswith("TorchTrainer_20")
    assert trial_dir_name("TorchTrainer", "ab12c_00000") == "TorchTrainer_ab12c_00000"
    assert trial_dir_name("T", "1", "lr=0.1,layers=[2, 3]/x") == "T_1_lr=0.1,layers=_2,_3_x"
    long_name = trial_dir_name("T", "1", "ü" * 300)
    assert len(long_name.encode()) <= LONGEST_TRIAL_NAME
    assert long_name.startswith("T_1_üü")


def test_local_storage_is_resolved_once(tmp_path: Path) -> None:
    (tmp_path / "real dir").mkdir()
    (tmp_path / "link").symlink_to("real dir")
    real = tmp_path / "real dir"
    assert resolve_storage(str(tmp_path / "link")) == real
    assert resolve_storage(tmp_path / "link") == real
    assert resolve_storage(real.as_uri()) == real
    assert resolve_storage("~/x") == Path.home().resolve() / "x"


def test_a_uri_stays_a_uri() -> None:
    assert resolve_storage("s3://bucket/results/") == "s3://bucket/results"
    assert resolve_storage("memory://results") == "memory://results"
    with pytest.raises(ConfigError, match="file:///"):
        resolve_storage("file://results/x")


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("lr=0.1,x=(2)+b_c-d", "lr=0.1,x=(2)+b_c-d"),
        ("été प्रयोग", "été%20प्रयोग"),
        ("100%?#*[a]::b", "100%25%3F%23%2A%5Ba%5D%3A%3Ab"),
        ("a%20b", "a%2520b"),
    ],
)
def test_names_are_quoted_in_uris(name: str, quoted: str) -> None:
    uri = uri_below("s3://bucket/results", name)
    assert uri == f"s3://bucket/results/{quoted}"
    assert name_from_uri(uri) == name


@pytest.mark.parametrize("last", ["a%2Fb", "%2e%2e", "%00"])
def test_a_name_from_a_uri_never_leads_elsewhere(last: str) -> None:
    assert name_from_uri(f"s3://bucket/{last}") == last


def test_a_loop_of_links_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ConfigError, match=f"{tmp_path}/a"):
        resolve_storage(tmp_path / "a")


def test_the_write_check_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


WRITE_CHECK = (
    "import os, sys; from pathlib import Path\n"
    "from paceline.storage.run_dir import check_writable\n"
    "from paceline.air.errors import StorageError\n"
    "uid = int(sys.argv[2])\n"
    "if uid: os.setgroups([]); os.setgid(uid); os.setuid(uid)\n"
    "try: check_writable(Path(sys.argv[1]))\n"
    "except StorageError as error: print(error.errno, error)\n"
)


@pytest.fixture
def place_for_everybody() -> Iterator[Path]:
    """pytest's own temporary directories are closed to other users."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@needs_root
@pytest.mark.parametrize("name", ["", "new", "new/deep"])
def test_a_place_without_write_permission_is_refused(place_for_everybody: Path, name: str) -> None:
    target = place_for_everybody / name
    command = [sys.executable, "-c", WRITE_CHECK, str(target), "65534"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("13 ")
    assert "uid 65534" in done.stdout
    assert str(place_for_everybody) in done.stdout
    assert list(place_for_everybody.iterdir()) == []


def test_a_read_only_file_system_is_refused(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o ro none "$1" && exec "$2" -c "$3" "$1" 0'
    command = ["unshare", "-Urm", "sh", "-c", script, "sh", str(tmp_path), sys.executable, WRITE_CHECK]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs a private file system: {done.stderr.strip()}")
    assert done.stdout.startswith("30 ")
    assert str(tmp_path) in done.stdout


def test_odd_paths_work_byte_exact_in_the_c_locale(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from paceline.storage.run_dir import RunDir, check_writable, resolve_storage\n"
        "for given in sys.argv[1:]:\n"
        "    root = resolve_storage(given); check_writable(root)\n"
        "    run_dir = RunDir(root / 'trial'); run_dir.create(); run_dir.params.write_text('{}')\n"
    )
    roots = [tmp_path / name for name in ("ünï çødé 训练", "with  spaces", "new\nline", os.fsdecode(b"latin-\xff"))]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program, *map(str, roots)], check=True, env=environment)
    for root in roots:
        assert (root / "trial" / "params.json").exists()


def test_a_path_of_almost_four_kilobytes_works_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    deep = tmp_path
    while len(os.fsencode(deep)) < 3600:
        deep = deep / ("d" * 200)
    check_writable(deep)
    run_dir = RunDir(deep / "trial")
    run_dir.create()
    run_dir.staging(1, 0).mkdir()
    assert len(run_dir.sweep()) == 1
    with pytest.raises(StorageError, match="shorter storage_path"):
        check_writable(deep / ("d" * 200) / ("e" * 200))
