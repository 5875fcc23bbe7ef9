"""Which files are meant.

A path is a file, a directory (everything below it), a glob pattern, or a URI that fsspec knows.
"""

from __future__ import annotations

import difflib
import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from paceline.air import session
from paceline.air.errors import ConfigError, DataError, DataNotFoundError
from paceline.air.secrets import without_credentials
from paceline.data.sources.listed_file import ListedFile, local_state, stamp_of

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"

LISTING_THREADS = 16


# -- listing ------------------------------------------------------------------------------


def list_files(
    paths: Paths, filesystem: Any = None, extensions: tuple[str, ...] = (), *, ignore_missing: bool = False
) -> tuple[ListedFile, ...]:
    """All files that are meant, at least one. `ignore_missing`: paths that do not exist are left out, unless all are.

    The order of a given list is kept; within a directory or pattern, files come in the order of their names with
    numbers counted as numbers. `extensions` says which files of a directory are meant; what is named outright is taken.
    """
    given = _as_list(paths)
    missing: list[DataNotFoundError] = []

    def expand(path: str) -> list[ListedFile]:
        try:
            return _expand(path, filesystem, extensions)
        except DataNotFoundError as error:
            if not ignore_missing:
                raise
            missing.append(error)
            return []

    if len(given) == 1 or not (filesystem is not None or any("://" in path for path in given)):
        found = [expand(path) for path in given]
    else:  # each path may cost a request
        with ThreadPoolExecutor(min(LISTING_THREADS, len(given))) as pool:
            found = list(pool.map(expand, given))
    if missing and not any(found):
        raise missing[0]
    return tuple(entry for entries in found for entry in entries)


def _as_list(paths: Paths) -> list[str]:
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if not isinstance(paths, Sequence | Iterator | Set):  # a frame or dict would give the names of its columns
        raise ConfigError(
            f"paths is a {type(paths).__name__}; give a path, a URI, or a list of them. What is in memory already is "
            "for from_pandas, from_arrow, from_items and the like."
        )
    result = []
    for path in paths:
        plain = os.fspath(path) if isinstance(path, str | os.PathLike) else path
        if not isinstance(plain, str) or not plain:
            raise ConfigError(f"{path!r} in paths is not a path; give strings or Path objects that are not empty.")
        result.append(plain)
    if not result:
        raise ConfigError("paths is an empty list; give at least one path.")
    return result


def _expand(path: str, filesystem: Any, extensions: tuple[str, ...]) -> list[ListedFile]:
    remote, place = _filesystem_of(path, filesystem)
    try:
        entries = (
            _local_entries(place, extensions) if remote is None else _remote_entries(remote, place, path, extensions)
        )
    except DataNotFoundError as error:
        if remote is not None or os.path.isabs(os.path.expanduser(path)) or session.current() is None:
            raise
        raise DataNotFoundError(
            f"{error} The path {path!r} is relative, and each worker runs in a directory of its own: "
            "use an absolute path."
        ) from None
    return sorted(entries, key=lambda entry: natural_key(entry.path))


def _filesystem_of(path: str, filesystem: Any) -> tuple[Any, str]:
    """The filesystem (None: this machine's files) and the path as it knows it."""
    if filesystem is None and "://" not in path:
        return None, os.path.abspath(os.path.expanduser(path))
    import fsspec

    try:
        if filesystem is None:
            opened, place = fsspec.core.url_to_fs(path)
        else:
            opened = as_fsspec(filesystem)
            place = opened._strip_protocol(path)
    except ImportError as error:
        raise ConfigError(f"{without_credentials(path)} needs a package: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{without_credentials(path)} cannot be used: {error}") from error
    except Exception as error:  # connecting may fail in as many ways as there are file systems
        raise DataError(f"{without_credentials(path)} cannot be reached: {_first_line(error)}") from error
    if _is_local(opened):
        return None, os.path.abspath(place)
    return opened, str(place)


def as_fsspec(filesystem: Any) -> Any:
    """A filesystem object of the user's, of fsspec or of pyarrow, as one of fsspec."""
    import fsspec
    from pyarrow import fs

    if isinstance(filesystem, fs.FileSystem):
        from fsspec.implementations.arrow import ArrowFSWrapper

        return ArrowFSWrapper(filesystem)
    if not isinstance(filesystem, fsspec.AbstractFileSystem):
        raise ConfigError(f"filesystem is a {type(filesystem).__name__}; give one of fsspec or of pyarrow.fs.")
    return filesystem


def _is_local(filesystem: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem
    from pyarrow import fs

    return isinstance(filesystem, LocalFileSystem) or isinstance(getattr(filesystem, "fs", None), fs.LocalFileSystem)


def natural_key(path: str) -> list[tuple[int, int, str]]:
    """Sorts "part-2" before "part-10"."""
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", path)]


def _is_wanted(below: str, extensions: tuple[str, ...]) -> bool:
    """False for hidden files, for what other programs leave beside data, and for other formats."""
    parts = below.split("/")
    if any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts):
        return False
    return not below.endswith(".crc") and (not extensions or below.lower().endswith(extensions))


def _has_pattern(path: str) -> bool:
    return any(character in path for character in "*?[")


def _before_pattern(path: str) -> str:
    """The directory that holds everything a pattern can match."""
    parts = path.split("/")
    return "/".join(itertools.takewhile(lambda part: not _has_pattern(part), parts)) or "/"


# -- this machine's files -----------------------------------------------------------------


def _local_entries(path: str, extensions: tuple[str, ...]) -> list[ListedFile]:
    if os.path.isdir(path):
        found = list(_local_below(path, path, extensions, ()))
        if not found:
            raise _nothing_in(path, extensions)
        return found
    if not os.path.lexists(path) and _has_pattern(path):
        matches = [match for match in glob.glob(path, recursive=True) if _is_wanted(os.path.basename(match), ())]
        root = _before_pattern(path)
        found = [entry for match in matches for entry in _local_match(match, root, extensions)]
        if not found:
            raise DataNotFoundError(f"No file matches {path}. Check the pattern and the directory before it.")
        return found
    try:
        return [_local_entry(path, "")]
    except FileNotFoundError:
        names = _names_beside(lambda parent: os.listdir(parent), os.path.dirname(path))
        raise _missing(path, os.path.basename(path), names) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _local_match(match: str, root: str, extensions: tuple[str, ...]) -> Iterator[ListedFile]:
    if os.path.isdir(match):
        yield from _local_below(root, match, extensions, ())
    else:
        yield _local_entry(match, _relative(match, root))


def _local_below(
    root: str, directory: str, extensions: tuple[str, ...], open_: tuple[str, ...]
) -> Iterator[ListedFile]:
    real = os.path.realpath(directory)
    if real in open_:
        raise DataError(f"{directory} is a link to a directory above it. Remove the link or name the files.")
    try:
        with os.scandir(directory) as found:
            entries = list(found)
    except OSError as error:
        raise DataError(f"The directory {directory} cannot be read: {error.strerror or error}.") from error
    for entry in entries:
        below = _relative(entry.path, root)
        if entry.is_dir() and _is_wanted(below, ()):
            yield from _local_below(root, entry.path, extensions, (*open_, real))
        elif entry.is_file() and _is_wanted(below, extensions):
            yield _local_entry(entry.path, below)


def _relative(path: str, root: str) -> str:
    return os.path.relpath(path, root).replace(os.sep, "/")


def _local_entry(path: str, below: str) -> ListedFile:
    return ListedFile(path, *local_state(os.stat(path)), below=below)


# -- remote files -------------------------------------------------------------------------


def _remote_entries(filesystem: Any, place: str, given: str, extensions: tuple[str, ...]) -> list[ListedFile]:
    label = without_credentials(given)
    filesystem.invalidate_cache()  # what was listed earlier in this process may have changed
    try:
        if _has_pattern(place) and not filesystem.exists(place):
            return _remote_matches(filesystem, place, label)
        info = filesystem.info(place)
        if info["type"] != "directory":
            return [_remote_entry(filesystem, info, "")]
        below = place.rstrip("/") + "/"
        found = filesystem.find(place, detail=True).values()
    except DataError:
        raise
    except FileNotFoundError as error:
        if (problem := _behind(error)) is not None:
            raise DataError(f"{label} cannot be reached: {_first_line(problem)}") from error
        names = _names_beside(
            lambda parent: [str(path) for path in filesystem.ls(parent, detail=False)], filesystem._parent(place)
        )
        raise _missing(label, place.rsplit("/", 1)[-1], names) from None
    except Exception as error:  # each filesystem has classes of its own for "no such bucket" and "not allowed"
        raise DataError(f"{label} cannot be listed: {_first_line(error)}") from error
    entries = [
        _remote_entry(filesystem, info, name)
        for info in found
        if _is_wanted(name := str(info["name"]).removeprefix(below), extensions)
    ]
    if not entries:
        raise _nothing_in(label, extensions)
    return entries


def _behind(error: FileNotFoundError) -> BaseException | None:
    """What really happened, where a file system says "not found" of a server that did not answer or refused."""
    cause = error.__cause__
    if isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) == 404:
        return None
    return cause if isinstance(cause, OSError) or hasattr(cause, "status") else None


def _first_line(error: BaseException) -> str:
    """Type and message; some libraries append pages of a Java stack or of XML."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}." if lines else f"{type(error).__name__}."


def _remote_matches(filesystem: Any, place: str, label: str) -> list[ListedFile]:
    root = _before_pattern(place)
    entries = [
        _remote_entry(filesystem, info, path.removeprefix(root).lstrip("/"))
        for path, info in filesystem.glob(place, detail=True).items()
        if info["type"] != "directory" and _is_wanted(path.rsplit("/", 1)[-1], ())
    ]
    if not entries:
        raise DataNotFoundError(f"No file matches {label}. Check the pattern and the directory before it.")
    return entries


def _remote_entry(filesystem: Any, info: dict[str, Any], below: str) -> ListedFile:
    return ListedFile(str(info["name"]), int(info["size"] or 0), stamp_of(info), filesystem, below)


# -- what is missing ----------------------------------------------------------------------


def _names_beside(list_directory: Any, parent: str) -> list[str]:
    try:
        return [str(name).rstrip("/").rsplit("/", 1)[-1] for name in list_directory(parent)]
    except Exception:  # only for a hint in a message about something else
        return []


def _missing(path: str, name: str, beside: list[str]) -> DataNotFoundError:
    close = difflib.get_close_matches(name, beside, n=3)
    hint = f"Did you mean {' or '.join(close)}?" if close else "Check the path."
    return DataNotFoundError(f"{path} does not exist. {hint}")


def _nothing_in(directory: str, extensions: tuple[str, ...]) -> DataNotFoundError:
    wanted = f"files ending in {', '.join(extensions)}" if extensions else "files"
    return DataNotFoundError(
        f"There are no {wanted} in the directory {directory} (names that begin with . or _ do not count). "
        "To read files of other names, give a pattern or a list."
    )
