"""Files of a checkpoint on their way: into a directory, or into one packed stream.

The packed form is an uncompressed tar of regular files and directories. Its last entry is a manifest
of the files, so that a cut or damaged stream is noticed. Unpacking writes nothing outside its target, and no more
than the stream holds: names that lead elsewhere, links, devices and sizes beyond the end are refused.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Protocol

from paceline.air.constants import CHECKPOINT_MANIFEST_FILE, CHECKPOINT_METADATA_FILE, CHECKPOINT_PREPROCESSOR_FILE
from paceline.air.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError
from paceline.air.manifest import (
    CHUNK,
    SAFE_PERMISSIONS,
    FileEntry,
    Manifest,
    manifest_name,
    new_hash,
    parse_manifest,
    remember,
)

MAX_ENTRIES = 200_000
"""Files and directories that one packed checkpoint may hold."""
MAX_ZIP_GROWTH = 100
"""How many times larger than its file the content of a zip archive may be, beyond MAX_ZIP_SLACK bytes."""
MAX_ZIP_SLACK = 256 << 20

_PACKED = "Packed checkpoint"

_WRITTEN_LAST = (CHECKPOINT_PREPROCESSOR_FILE, CHECKPOINT_METADATA_FILE)
"""Small files that the checkpoint itself writes after its content."""


class FileSink(Protocol):
    """Where a checkpoint writes its files. A name written twice: the later content wins."""

    def open(self, name: str) -> BinaryIO:
        """A new file in the checkpoint; complete once it is closed."""

    def add_directory(self, path: str, move: bool = False, expected: Manifest | None = None) -> None:
        """Copy all files of a directory in, or take the directory over with `move`.

        Raise CheckpointCorruptError if a file that is copied is not as `expected`.
        """


class DirectorySink:
    """Writes into a directory, on top of what is there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise CheckpointError(f"{root} is not a directory. Give a directory to write the checkpoint to.") from error

    def open(self, name: str) -> BinaryIO:
        target = self.root / safe_relative(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink():
            target.unlink()
        return target.open("wb")

    def add_directory(self, path: str, move: bool = False, expected: Manifest | None = None) -> None:
        for name, source in tree(Path(path)):
            target = self.root / name
            if source.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            if target.is_symlink():
                target.unlink()
            if move:
                shutil.move(source, target)
                continue
            if expected is None:
                shutil.copyfile(source, target)
            else:
                _copy_verified(path, name, source, target, expected)
            target.chmod(source.stat().st_mode & 0o777)


class TarSink:
    """Packs into a stream. `close` writes the end marker; the stream stays open."""

    def __init__(self, stream: BinaryIO) -> None:
        self._archive = tarfile.TarFile(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT, copybufsize=CHUNK)
        self._entries = 0
        self._files: dict[str, FileEntry] = {}

    def open(self, name: str) -> BinaryIO:
        return _PackedFile(self, str(safe_relative(name)))

    def add_directory(self, path: str, move: bool = False, expected: Manifest | None = None) -> None:
        for name, source in tree(Path(path)):
            if name not in _WRITTEN_LAST:
                self.add(name, source, path, expected)

    def add(self, name: str, source: Path, place: str, expected: Manifest | None) -> None:
        """Add one file or directory of the checkpoint in `place`."""
        mode = source.stat().st_mode
        if source.is_dir():
            self._add(name, 0, mode, None)
            return
        with source.open("rb") as content:
            self._add(name, os.fstat(content.fileno()).st_size, mode, content)
        if expected is not None:
            added = self._files[manifest_name(name)]
            expected.check(place, manifest_name(name), added.size, added.hash)

    def _add(self, name: str, size: int, mode: int, content: BinaryIO | None) -> None:
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise CheckpointError(
                f"A checkpoint of more than {MAX_ENTRIES:,} files cannot be packed. Keep it as a directory."
            )
        # Owner and time are left out: equal checkpoints give equal bytes.
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = size, mode & 0o777
        if content is None:
            entry.type = tarfile.DIRTYPE
            self._archive.addfile(entry)
            return
        hashed = _HashingReader(content)
        self._archive.addfile(entry, hashed)
        self._files[manifest_name(name)] = FileEntry(size, hashed.hexdigest(), entry.mode)

    def close(self) -> None:
        manifest = Manifest(self._files).encode()
        self._add(CHECKPOINT_MANIFEST_FILE, len(manifest), 0o600, io.BytesIO(manifest))
        self._archive.close()


class _HashingReader:
    """A file that is hashed while it is read."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content
        self._hash = new_hash()

    def read(self, size: int = -1) -> bytes:
        piece = self._content.read(size)
        self._hash.update(piece)
        return piece

    def hexdigest(self) -> str:
        return str(self._hash.hexdigest())


class _PackedFile(io.BytesIO):
    """Collects one file, because a tar entry states its size first."""

    def __init__(self, sink: TarSink, name: str) -> None:
        super().__init__()
        self._sink = sink
        self._name = name

    def close(self) -> None:
        if not self.closed:
            size = self.getbuffer().nbytes  # not tell(): some writers seek back
            self.seek(0)
            self._sink._add(self._name, size, 0o644, self)
        super().close()

    def __exit__(self, kind: object, *details: object) -> None:
        if kind is None:
            self.close()
        else:  # half-written: leave it out
            super().close()


def _copy_verified(place: str, name: str, source: Path, target: Path, expected: Manifest) -> None:
    """Copy a file and hash it on the way."""
    with open(source, "rb", buffering=0) as content, open(target, "wb") as copy:
        status = os.fstat(content.fileno())
        size, digest = _copy_hashed(content, copy)
    try:
        expected.check(place, manifest_name(name), size, digest)
    except CheckpointCorruptError:
        target.unlink()
        raise
    remember(status, digest)


def _copy_hashed(source: io.RawIOBase | io.BufferedIOBase, target: IO[bytes]) -> tuple[int, str]:
    """Copy a stream; returns the size and the hash of its content."""
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    hasher, size = new_hash(), 0
    while count := source.readinto(buffer):
        hasher.update(view[:count])
        target.write(view[:count])
        size += count
    return size, str(hasher.hexdigest())


def tree(root: Path) -> Iterator[tuple[str, Path]]:
    """Relative name and path of everything below `root`, directories before their content.

    A link to a file inside counts as that file; other links and special files are refused. The
    manifest is left out: it describes the committed original, not a copy.
    """
    real_root = Path(os.path.realpath(root))
    for folder, directories, files in os.walk(root, onerror=_raise_unreadable):
        directories.sort()
        for name in sorted([*directories, *files]):
            path = Path(folder, name)
            relative = path.relative_to(root)
            if relative == Path(CHECKPOINT_MANIFEST_FILE):
                continue
            if path.is_symlink():
                target = Path(os.path.realpath(path))
                if not (target.is_file() and target.is_relative_to(real_root)):
                    raise CheckpointError(
                        f"The checkpoint {root} contains the link {str(relative)!r}, which does not lead to a file "
                        "inside it. Put the file itself there."
                    )
                path = target
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise CheckpointError(f"The checkpoint {root} contains {str(relative)!r}, which is not a regular file.")
            yield relative.as_posix(), path


def _raise_unreadable(error: OSError) -> None:
    if isinstance(error, FileNotFoundError):
        raise CheckpointNotFoundError(f"The checkpoint directory {error.filename} does not exist.") from error
    raise CheckpointError(f"The checkpoint directory {error.filename} cannot be read: {error.strerror}.") from error


def safe_relative(name: str) -> PurePosixPath:
    """`name` as a path below the checkpoint's root, or CheckpointCorruptError."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name:
        raise CheckpointCorruptError(f"{name!r} is not a file name inside a checkpoint.")
    return path


def read_packed(stream: BinaryIO, name: str) -> bytes | None:
    """One file of a packed checkpoint; all entries are checked on the way, and the content of this one."""
    found = None
    with _damage_told():
        for entry, content in _entries(stream):
            if content is None:
                continue
            if entry.name == name:
                found = content.read()
            elif entry.name == CHECKPOINT_MANIFEST_FILE:
                _manifest_in(content).check_content(_PACKED, manifest_name(name), found)
    return found


def unpack(stream: BinaryIO, into: Path) -> None:
    """Write a packed checkpoint's files below `into`, and compare them with its manifest."""
    sink = DirectorySink(into)
    written: dict[str, tuple[int, str]] = {}
    with _damage_told():
        for entry, content in _entries(stream):
            path = into / entry.name
            if content is None:
                path.mkdir(parents=True, exist_ok=True)
                continue
            if entry.name == CHECKPOINT_MANIFEST_FILE:
                manifest = _manifest_in(content)
                continue
            with sink.open(entry.name) as target:
                written[manifest_name(entry.name)] = _copy_hashed(content, target)
            path.chmod((entry.mode & SAFE_PERMISSIONS) | 0o600)
    for name, (size, digest) in written.items():
        manifest.check(_PACKED, name, size, digest)
    for name in manifest.files:
        if name not in written:
            manifest.check_content(_PACKED, name, None)


def _manifest_in(content: IO[bytes]) -> Manifest:
    manifest = parse_manifest(content.read(), f"The manifest of a {_PACKED.lower()}")
    if manifest is None:
        raise CheckpointCorruptError(f"{_PACKED}: its {CHECKPOINT_MANIFEST_FILE} was not written by paceline.")
    return manifest


def _entries(stream: BinaryIO) -> Iterator[tuple[tarfile.TarInfo, io.BufferedReader | None]]:
    """The entries in order, each one checked, with a file's content."""
    length = stream.seek(0, os.SEEK_END) or stream.tell()
    stream.seek(0)
    seen: set[str] = set()
    last = ""
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        for entry in archive:
            entry.name = str(safe_relative(entry.name))
            if not (entry.isdir() or entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE)) or entry.issparse():
                raise CheckpointCorruptError(f"{_PACKED}: {entry.name!r} is not a regular file or directory.")
            if entry.name in seen:
                raise CheckpointCorruptError(f"{_PACKED}: {entry.name!r} occurs twice.")
            seen.add(entry.name)
            if len(seen) > MAX_ENTRIES:
                raise CheckpointCorruptError(f"{_PACKED}: more than {MAX_ENTRIES:,} entries.")
            if not 0 <= entry.size <= length - entry.offset_data:
                raise CheckpointCorruptError(
                    f"{_PACKED}: {entry.name!r} claims {entry.size:,} bytes, more than there are. The end is missing, "
                    "or the bytes are damaged."
                )
            content = archive.extractfile(entry)
            assert content is None or isinstance(content, io.BufferedReader)
            yield entry, content
            last = entry.name
    if last != CHECKPOINT_MANIFEST_FILE:
        raise CheckpointCorruptError(
            "These bytes are not a whole packed checkpoint: the end is missing, or an earlier version of paceline "
            "wrote them. Pack the checkpoint again with to_bytes()."
        )


def check_zip_size(path: Path) -> None:
    """Refuse a zip archive whose content is out of proportion to its file, before anything is unpacked.

    Models are stored with little or no compression. An archive of a few kilobytes can stand for terabytes.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            content = sum(each.file_size for each in archive.infolist())
    except (zipfile.BadZipFile, OSError):
        return  # damaged: loading it says so
    size = path.stat().st_size
    if content > MAX_ZIP_SLACK + MAX_ZIP_GROWTH * size:
        raise CheckpointError(
            f"{path} is not loaded: its {size:,} bytes would become {content:,} when they are unpacked, which is more "
            f"than {MAX_ZIP_GROWTH} times as much. If you know where it comes from, write it again without compression."
        )


@contextmanager
def _damage_told() -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise CheckpointCorruptError(f"These bytes are not a packed checkpoint, or are damaged: {error}.") from error
