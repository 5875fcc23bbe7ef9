"""What a power cut leaves of a directory: a model of a disk, fed with the system calls of a program (strace).

The disk keeps what was synced. What was not may be lost, all of it or in part, so each cut is looked at in three ways:

| way | names in directories | content of files |
|---|---|---|
| strict | as of the last fsync of the directory | as of the last fsync of the file |
| names first | as they were | as of the last fsync of the file |
| everything | as they were | as it was |
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "openat,write,writev,pwrite64,sendfile,copy_file_range,fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,"
    "unlink,unlinkat,rmdir,ftruncate,truncate,link,linkat"
)
STRACE = ("strace", "-f", "-y", "-xx", "-s", "4000000", "-e", f"trace={CALLS}")
WAYS = ("strict", "names first", "everything")

_LINE = re.compile(r"(\d+) +(.*)")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?)")
_HEX = re.compile(r"(?:\\x[0-9a-f]{2})*")


@dataclass
class Node:
    """A file or a directory."""

    entries: dict[str, Node] | None = None
    """None for a file."""
    content: bytearray = field(default_factory=bytearray)
    durable_entries: dict[str, Node] = field(default_factory=dict)
    durable_content: bytes = b""

    def sync(self) -> None:
        if self.entries is not None:
            self.durable_entries = dict(self.entries)
        else:
            self.durable_content = bytes(self.content)


@dataclass(frozen=True)
class Call:
    """One system call that succeeded."""

    name: str
    arguments: list[str]
    result: int

    def path(self, index: int, below: int | None = None) -> Path:
        """A path argument; `below` is the index of the descriptor that it is relative to."""
        text = os.fsdecode(_unhex(self.arguments[index]))
        return Path(text) if below is None else Path(self.descriptor(below), text)

    def descriptor(self, index: int) -> Path:
        """Where a descriptor points."""
        return Path(os.fsdecode(_unhex(self.arguments[index].partition("<")[2])))


def _unhex(text: str) -> bytes:
    found = _HEX.match(text.lstrip('"'))
    return bytes.fromhex(found[0].replace("\\x", "")) if found else b""


def calls_in(trace: Iterable[str]) -> Iterator[Call]:
    """The calls of a trace in the order in which they returned."""
    begun: dict[str, str] = {}
    for line in trace:
        pid, rest = _LINE.match(line).groups()  # type: ignore[union-attr]
        if rest.endswith("<unfinished ...>"):
            begun[pid] = rest.removesuffix("<unfinished ...>").rstrip()
            continue
        if (resumed := _RESUMED.match(rest)) is not None:
            rest = begun.pop(pid) + resumed[1]
        if (found := _CALL.match(rest)) is not None and found[3] not in ("-1", "?"):
            assert '"...' not in found[2], "strace has cut a string off"
            yield Call(found[1], found[2].split(", "), int(found[3]))


class Disk:
    """The part of a file system below one directory, with folders that were there before and survive."""

    def __init__(self, root: Path, *folders: str) -> None:
        self.root = root
        self.top = Node({name: Node({}) for name in folders})
        self.top.sync()

    def apply(self, call: Call) -> bool:
        """Do what a call did; True if it made something durable."""
        name = call.name
        if name in ("fsync", "fdatasync"):
            node = self._find(call.descriptor(0))
            if node is not None:
                node.sync()
            return node is not None
        if name == "openat":
            self._open(call)
        elif name in ("write", "pwrite64"):
            self._write(call)
        elif name in ("writev", "sendfile", "copy_file_range", "truncate"):
            index = 2 if name == "copy_file_range" else 0
            place = call.path(0) if name == "truncate" else call.descriptor(index)
            assert self._find(place) is None, f"{name} on {place} is not modelled"
        elif name == "ftruncate":
            node = self._find(call.descriptor(0))
            if node is not None:
                size = int(call.arguments[1])
                node.content = node.content[:size].ljust(size, b"\0")
        else:
            self._change_names(call)
        return False

    def _open(self, call: Call) -> None:
        path, flags = call.path(1, below=0), call.arguments[2]
        folder = self._folder(path)
        if folder is None:
            return
        if "O_CREAT" in flags and path.name not in folder:
            folder[path.name] = Node()
        node = folder.get(path.name)
        if node is not None and "O_TRUNC" in flags:
            node.content = bytearray()

    def _write(self, call: Call) -> None:
        """All files here are written from start to end, or appended to."""
        node = self._find(call.descriptor(0))
        if node is not None:
            data = _unhex(call.arguments[1])[: call.result]
            start = int(call.arguments[3]) if call.name == "pwrite64" else len(node.content)
            node.content[start : start + len(data)] = data

    def _change_names(self, call: Call) -> None:
        name = call.name
        at = name in ("mkdirat", "unlinkat", "renameat", "renameat2", "linkat")
        first = call.path(1, below=0) if at else call.path(0)
        folder = self._folder(first)
        if name in ("mkdir", "mkdirat"):
            if folder is not None:
                folder[first.name] = Node({})
        elif name in ("unlink", "unlinkat", "rmdir"):
            if folder is not None:
                folder.pop(first.name, None)
        else:
            second = call.path(3, below=2) if at else call.path(1)
            target = self._folder(second)
            node = folder.get(first.name) if folder is not None else None
            assert (node is None) == (target is None), f"{first} and {second} are not both below {self.root}"
            if node is not None and target is not None and folder is not None:
                if name.startswith("rename"):
                    del folder[first.name]
                target[second.name] = node

    def _folder(self, path: Path) -> dict[str, Node] | None:
        node = self._find(path.parent)
        return node.entries if node is not None else None

    def _find(self, path: Path) -> Node | None:
        """The node at an absolute path; None if it is not below the root."""
        if not path.is_relative_to(self.root):
            return None
        node: Node | None = self.top
        for part in path.relative_to(self.root).parts:
            node = None if node is None or node.entries is None else node.entries.get(part)
        return node

    def leave(self, folder: str, way: str, place: Path) -> None:
        """Write to a new directory what a power cut leaves of a folder now."""
        self._leave(self.top.durable_entries[folder], way, place)

    def _leave(self, node: Node, way: str, place: Path) -> None:
        if node.entries is None:
            place.write_bytes(node.content if way == "everything" else node.durable_content)
            return
        place.mkdir()
        for name, below in (node.durable_entries if way == "strict" else node.entries).items():
            self._leave(below, way, place / name)
