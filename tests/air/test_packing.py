"""The packed form refuses what leads outside, and notices damage."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from paceline.air import packing
from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointCorruptError, CheckpointError
from paceline.air.manifest import FileEntry, Manifest, hash_of


def packed(*entries: tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    files = {}
    with tarfile.open(fileobj=stream, mode="w") as archive:

        def add(entry: tarfile.TarInfo, content: bytes) -> None:
            entry.size = len(content) if entry.isreg() else 0
            archive.addfile(entry, io.BytesIO(content) if entry.isreg() else None)
            files[str(Path(entry.name))] = FileEntry(len(content), hash_of(content))

        for entry in entries:
            add(entry, b"x")
        add(tarfile.TarInfo(".metadata.json"), b'{"paceline": 1}')
        add(tarfile.TarInfo("MANIFEST.json"), Manifest(files).encode())
    return stream.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_plain_files_are_accepted(tmp_path: Path) -> None:
    Checkpoint.from_bytes(packed(entry("a/b"), entry("./c"))).to_directory(tmp_path / "to")
    assert (tmp_path / "to" / "a" / "b").read_bytes() == b"x"
    assert (tmp_path / "to" / "c").read_bytes() == b"x"


@pytest.mark.parametrize(
    "bad",
    [
        [entry("../outside")],
        [entry("a/../../outside")],
        [entry("ABSOLUTE/outside")],
        [entry("a\\..\\b")],
        [entry("link", tarfile.SYMTYPE, "/etc"), entry("link/passwd")],
        [entry("link", tarfile.LNKTYPE, "/etc/passwd")],
        [entry("device", tarfile.CHRTYPE)],
        [entry("pipe", tarfile.FIFOTYPE)],
        [entry("sparse", tarfile.GNUTYPE_SPARSE)],
        [entry("twice"), entry("twice")],
        [entry("."), entry("x")],
    ],
    ids=lambda bad: bad[0].name + bad[0].type.decode(),
)
def test_other_entries_are_refused(bad: list[tarfile.TarInfo], tmp_path: Path) -> None:
    """S6: nothing is written outside, and what is refused is not written at all."""
    for each in bad:  # a place that is looked at below
        each.name = each.name.replace("ABSOLUTE", str(tmp_path))
    target = tmp_path / "to"
    target.mkdir()
    with pytest.raises(CheckpointCorruptError):
        Checkpoint.from_bytes(packed(*bad))
    with pytest.raises(CheckpointCorruptError):
        packing.unpack(io.BytesIO(packed(*bad)), target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["to"]
    assert all(path.name in {"twice", "x"} for path in target.iterdir())


def test_setuid_bits_and_write_permissions_for_others_are_dropped(tmp_path: Path) -> None:
    info = entry("tool")
    info.mode = 0o6777
    Checkpoint.from_bytes(packed(info)).to_directory(tmp_path / "to")
    assert (tmp_path / "to" / "tool").stat().st_mode & 0o7777 == 0o755


def test_a_copy_has_no_setuid_bits(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "tool").touch()
    (tmp_path / "from" / "tool").chmod(0o4750)
    Checkpoint(tmp_path / "from").to_directory(tmp_path / "to")
    assert (tmp_path / "to" / "tool").stat().st_mode & 0o7777 == 0o750


def test_the_number_of_entries_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    data = Checkpoint(tmp_path).to_bytes()
    monkeypatch.setattr(packing, "MAX_ENTRIES", 3)
    with pytest.raises(CheckpointCorruptError, match="more than 3"):
        Checkpoint.from_bytes(data)
    with pytest.raises(CheckpointError, match="more than 3"):
        Checkpoint(tmp_path).to_bytes()


def test_bytes_of_an_earlier_version_are_told_apart() -> None:
    """They had no manifest at the end."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(".metadata.json"))
    with pytest.raises(CheckpointCorruptError, match="earlier version"):
        Checkpoint.from_bytes(stream.getvalue()).to_dict()


def test_every_cut_is_noticed() -> None:
    data = Checkpoint.from_dict({"x": b"0123456789" * 200}).to_bytes()
    content = len(data.rstrip(b"\0"))
    for length in range(content):
        with pytest.raises(CheckpointCorruptError):
            Checkpoint.from_bytes(data[:length])


@pytest.mark.parametrize("junk", [b"", b"junk", b"\0" * 10240, b"\x80\x05}." * 1000])
def test_other_bytes_are_refused(junk: bytes) -> None:
    with pytest.raises(CheckpointCorruptError):
        Checkpoint.from_bytes(junk)


def test_equal_checkpoints_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "deep").mkdir(parents=True)
        for file in ("2", "1", "3"):
            (tmp_path / name / "deep" / file).write_text(file)
    assert Checkpoint(tmp_path / "a").to_bytes() == Checkpoint(tmp_path / "b").to_bytes()


def test_names_in_any_script_and_bytes_survive(tmp_path: Path) -> None:
    source = tmp_path / "from"
    source.mkdir()
    names = ["é", "实验", "with space", "x" * 200, b"\xff\xfe".decode("utf-8", "surrogateescape")]
    for name in names:
        (source / name).write_text("x")
    copy = Path(Checkpoint.from_bytes(Checkpoint(source).to_bytes()).to_directory(tmp_path / "to"))
    assert {path.name for path in copy.iterdir()} == {*names, ".metadata.json"}


def test_a_half_written_file_is_left_out() -> None:
    stream = io.BytesIO()
    sink = packing.TarSink(stream)

    def interrupted() -> None:
        with sink.open("half") as file:
            file.write(b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with sink.open(".metadata.json") as file:
        file.write(b"{}")
    sink.close()
    stream.seek(0)
    assert packing.read_packed(stream, ".metadata.json") == b"{}"
    stream.seek(0)
    assert packing.read_packed(stream, "half") is None


def test_an_archive_cannot_be_larger_than_its_bytes(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        huge = tarfile.TarInfo("huge")
        huge.size = 1 << 50
        stream.write(huge.tobuf(tarfile.PAX_FORMAT))
        archive.offset = stream.tell()
    with pytest.raises(CheckpointCorruptError, match=r"'huge'.*1,125,899,906,842,624"):
        Checkpoint.from_bytes(stream.getvalue())
    with pytest.raises(CheckpointCorruptError, match="'huge'"):
        packing.unpack(stream, tmp_path / "to")
    assert not list((tmp_path / "to").iterdir())


def test_a_compressed_archive_is_refused() -> None:
    with pytest.raises(CheckpointCorruptError, match="not a packed checkpoint"):
        Checkpoint.from_bytes(gzip.compress(packed(entry("a"))))


def test_a_zip_archive_out_of_proportion_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_ZIP_SLACK", 1 << 20)
    bomb, model = tmp_path / "bomb.zip", tmp_path / "model.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", b"\0" * (4 << 20))
    with zipfile.ZipFile(model, "w") as archive:
        archive.writestr("weights", b"\0" * (4 << 20))
    packing.check_zip_size(model)
    with pytest.raises(CheckpointError, match=r"bomb\.zip.*4,194,304"):
        packing.check_zip_size(bomb)


@pytest.mark.slow
def test_a_million_entries_are_refused_without_unpacking_them(tmp_path: Path) -> None:
    """S6, in its real size. One header serves for all entries: making them anew takes a minute."""
    header = entry("x").tobuf()
    stream = io.BytesIO(header * 1_000_001 + b"\0" * 1024)
    with pytest.raises(CheckpointCorruptError):
        packing.unpack(stream, tmp_path / "to")
    assert len(list((tmp_path / "to").iterdir()) if (tmp_path / "to").exists() else []) <= 1


@pytest.mark.slow
def test_ten_gigabytes_of_zeros_in_a_small_zip_are_refused(tmp_path: Path) -> None:
    """S6, in its real size."""
    bomb, block = tmp_path / "model.keras", b"\0" * 2**24
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("weights", "w", force_zip64=True) as weights,
    ):
        for _ in range(10 * 2**30 // len(block)):
            weights.write(block)
    assert bomb.stat().st_size < 100 * 2**20
    with pytest.raises(CheckpointError, match=r"model\.keras"):
        packing.check_zip_size(bomb)
