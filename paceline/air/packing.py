"""Files of a checkpoint on their way: into a directory, or into one packed stream.

The packed form is an uncompressed tar of regular files and directories whose last entry is
the checkpoint's metadata file, so that a cut stream is noticed. Unpacking writes nothing
outside its target: names that lead elsewhere, links and devices are refused.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Protocol

from paceline.air.constants import CHECKPOINT_MANIFEST_FILE, CHECKPOINT_METADATA_FILE, CHECKPOINT_PREPROCESSOR_FILE
from paceline.air.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError

MAX_ENTRIES = 200_000
"""Files and directories that one packed checkpoint may hold."""


_WRITTEN_LAST = (CHECKPOINT_PREPROCESSOR_FILE, CHECKPOINT_METADATA_FILE)
"""Small files that the checkpoint itself writes after its content."""


class FileSink(Protocol):
    """Where a checkpoint writes its files. A name written twice: the later content wins."""

    def open(self, name: str) -> BinaryIO:
        """A new file in the checkpoint; complete once it is closed."""

    def add_directory(self, path: str, move: bool = False) -> None:
        """Copy all files of a directory in, or take the directory over with `move`."""


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

    def add_directory(self, path: str, move: bool = False) -> None:
        for name, source in tree(Path(path)):
            target = self.root / name
            if source.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            if target.is_symlink():
                target.unlink()
            if move:
                shutil.move(source, target)
            else:
                shutil.copyfile(source, target)
                shutil.copymode(source, target)


class TarSink:
    """Packs into a stream. `close` writes the end marker; the stream stays open."""

    def __init__(self, stream: BinaryIO) -> None:
        self._archive = tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self._entries = 0

    def open(self, name: str) -> BinaryIO:
        return _PackedFile(self, str(safe_relative(name)))

    def add_directory(self, path: str, move: bool = False) -> None:
        for name, source in tree(Path(path)):
            if name not in _WRITTEN_LAST:
                self.add(name, source)

    def add(self, name: str, source: Path) -> None:
        """Add one file or directory."""
        mode = source.stat().st_mode
        if source.is_dir():
            self._add(name, 0, mode, None)
            return
        with source.open("rb") as content:
            self._add(name, os.fstat(content.fileno()).st_size, mode, content)

    def _add(self, name: str, size: int, mode: int, content: BinaryIO | None) -> None:
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise CheckpointError(
                f"A checkpoint of more than {MAX_ENTRIES:,} files cannot be packed. Keep it as a directory."
            )
        # Owner and time are left out: equal checkpoints give equal bytes.
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = size, mode & 0o777
        entry.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
        self._archive.addfile(entry, content)

    def close(self) -> None:
        self._archive.close()


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
    """One file of a packed checkpoint; all entries are checked on the way."""
    found = None
    with _damage_told():
        for entry, content in _entries(stream):
            if entry.name == name and content is not None:
                found = content.read()
    return found


def unpack(stream: BinaryIO, into: Path) -> None:
    """Write a packed checkpoint's files below `into`."""
    sink = DirectorySink(into)
    with _damage_told():
        for entry, content in _entries(stream):
            path = into / entry.name
            if content is None:
                path.mkdir(parents=True, exist_ok=True)
                continue
            with sink.open(entry.name) as target:
                shutil.copyfileobj(content, target, 1 << 20)
            path.chmod((entry.mode & 0o777) | 0o600)


def _entries(stream: BinaryIO) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """The entries in order, each one checked, with a file's content."""
    seen: set[str] = set()
    last = ""
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        for entry in archive:
            entry.name = str(safe_relative(entry.name))
            if not (entry.isdir() or entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE)) or entry.issparse():
                raise CheckpointCorruptError(f"Packed checkpoint: {entry.name!r} is not a regular file or directory.")
            if entry.name in seen:
                raise CheckpointCorruptError(f"Packed checkpoint: {entry.name!r} occurs twice.")
            seen.add(entry.name)
            if len(seen) > MAX_ENTRIES:
                raise CheckpointCorruptError(f"Packed checkpoint: more than {MAX_ENTRIES:,} entries.")
            yield entry, archive.extractfile(entry)
            last = entry.name
    if last != CHECKPOINT_METADATA_FILE:
        raise CheckpointCorruptError("These bytes are not a whole packed checkpoint: the end is missing.")


@contextmanager
def _damage_told() -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise CheckpointCorruptError(f"These bytes are not a packed checkpoint, or are damaged: {error}.") from error
