"""Pickling what the user hands to workers, and naming the culprit when that fails."""

from __future__ import annotations

import functools
import importlib.machinery
import io
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from paceline.air.attachment import Attachment
from paceline.air.errors import SerializationError

LARGE_BYTES = 1 << 18
"""From here on content is an attachment, and not part of each task."""
_ASIDE_BYTES = 1 << 14
"""Arrays from this size on are mapped where they are used, and not copied."""
_ALIGNMENT = 64

Span = tuple[int, int]
"""Offset and length in an attachment."""
MAX_DEPTH = 12
MAX_VISITED = 5000
MAIN_MARK = "__paceline_worker__"
"""Set in a `__main__` module that belongs to a worker process and not to a user's script."""


def dumps(
    obj: Any,
    what: str,
    whom: str = "the workers",
    advice: str = "Create it inside the training function, or pass what is needed to create it.",
    aside: Callable[[pickle.PickleBuffer], bool] | None = None,
    attachments: list[Attachment] | None = None,
) -> bytes:
    """Pickle `obj` by value where needed; `what` is how the user knows it, e.g. ``train_loop_config``.

    `whom` and `advice` are for the message if that fails: who was to get it, and what to do instead. `aside` gets
    the memory of arrays and the like; what it returns False for is not in the pickle (`load` needs it again). With
    `attachments` those in it are put there, and not into the pickle.
    """
    try:
        return _pickled(obj, aside, attachments)
    except Exception as error:
        path, culprit, reason = _find_culprit(obj, what, error)
        raise SerializationError(
            f"{path} ({_type_name(culprit)}) cannot be sent to {whom}: {_first_line(reason)}. {advice}"
        ) from None  # The pickler's own traceback says nothing that the reason does not say.


class Pickled(NamedTuple):
    """A pickle, and the attachments in it: those travel beside the pickle."""

    content: bytes
    attachments: tuple[Attachment, ...] = ()


def pickled(obj: Any, what: str) -> Pickled:
    """Like `dumps`, for something that is sent with a message: attachments in it need not be copied."""
    attachments: list[Attachment] = []
    content = dumps(obj, what, attachments=attachments)
    return Pickled(content, tuple(attachments))


def _pickled(
    obj: Any,
    aside: Callable[[pickle.PickleBuffer], bool] | None = None,
    attachments: list[Attachment] | None = None,
) -> bytes:
    buffer = io.BytesIO()
    _pickler_class()(buffer, aside, attachments).dump(obj)
    return buffer.getvalue()


class _Beside:
    """Pickles an attachment as its number among those that travel beside the pickle."""

    def __init__(self, attachments: list[Attachment]) -> None:
        self._attachments = attachments

    def __call__(self, attachment: Attachment) -> tuple[Any, ...]:
        self._attachments.append(attachment)
        return beside, (len(self._attachments) - 1,)


def beside(number: int) -> Attachment:
    """Stands in a pickle for an attachment; who loads it has those."""
    raise SerializationError(f"attachment {number} of this pickle did not come with it")


@functools.cache
def _pickler_class() -> Any:
    """cloudpickle's pickler, except that it sends no open file: it would read all of a file that is open
    for reading and send the content."""
    import cloudpickle

    usual = cloudpickle.Pickler.dispatch_table[io.TextIOWrapper]

    def reduce_file(file: io.TextIOWrapper) -> Any:
        if file is sys.stdout or file is sys.stderr:
            return usual(file)  # By name: the worker's own.
        raise pickle.PicklingError("an open file belongs to the process that opened it")

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({io.TextIOWrapper: reduce_file})

        def __init__(self, buffer: io.BytesIO, aside: Any, attachments: list[Attachment] | None) -> None:
            if attachments is not None:  # Before the constructor, which looks at the table.
                self.dispatch_table = self.dispatch_table.new_child({Attachment: _Beside(attachments)})
            super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=aside)

    return Pickler


def loads(data: bytes, attachments: Sequence[Attachment] = ()) -> Any:
    """Unpickle in a worker. Functions and classes of the user's script become members of this
    process's own `__main__`, so that pickling them again (torch.save, spawned helpers) works."""
    return load(io.BytesIO(data), attachments=attachments)


def load(file: BinaryIO, buffers: Iterable[Any] = (), attachments: Sequence[Attachment] = ()) -> Any:
    """The same from a file, with the memory that was put aside when it was pickled."""
    main = sys.modules.get("__main__")
    if main is None or not hasattr(main, MAIN_MARK):
        return _Unpickler(file, buffers, attachments).load()
    return _MainAdopter(file, buffers, attachments, main).load()


class Shipped:
    """Stands for `value` in what is sent to workers: unpickling gives the value itself.

    Large content is an attachment of the task: where the engine hands attachments over without a copy, all workers
    share the pages of arrays, and one that writes to them has a copy of its own of what it changed.
    """

    def __init__(self, value: Any, what: str) -> None:
        self.value = value
        self.what = what
        """How the user knows it, for the message if it cannot be pickled."""
        self._packed: tuple[Any, tuple[Any, ...]] | None = None

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.pack()

    def pack(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle now, if that was not done yet; raises SerializationError for what cannot travel."""
        if self._packed is None:
            aside: list[memoryview] = []
            content = dumps(self.value, self.what, aside=lambda buffer: _stays_inside(buffer, aside))
            if not aside and len(content) < LARGE_BYTES:
                self._packed = (loads, (content,))
            else:
                self._packed = (unpacked, _attached(content, aside))
        return self._packed


def unpacked(attachment: Attachment, spans: Sequence[Span]) -> Any:
    """The value in an attachment."""
    memory = attachment.view(private=True)
    with attachment.open() as file:
        return load(file, [memory[offset : offset + length] for offset, length in spans])


def _stays_inside(buffer: pickle.PickleBuffer, aside: list[memoryview]) -> bool:
    memory = buffer.raw()
    if memory.nbytes < _ASIDE_BYTES:
        return True
    aside.append(memory)
    return False


def _attached(content: bytes, aside: Sequence[memoryview]) -> tuple[Attachment, list[Span]]:
    """The pickle, then what was put aside; gives the attachment and where the latter are."""
    spans: list[Span] = []

    def write(file: BinaryIO) -> None:
        file.write(content)
        for memory in aside:
            offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
            file.seek(offset)
            file.write(memory)
            spans.append((offset, memory.nbytes))

    return Attachment.written("paceline-shipped", write), spans


def new_main_module(file: str | None) -> types.ModuleType:
    """An empty `__main__` for a worker: the user's script is never run again, only pointed to."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    main.__dict__[MAIN_MARK] = True
    if file is not None:
        main.__file__ = file
    return main


class _Unpickler(pickle.Unpickler):
    """Puts attachments where the pickle refers to them."""

    def __init__(self, file: BinaryIO, buffers: Iterable[Any], attachments: Sequence[Attachment]) -> None:
        super().__init__(file, buffers=buffers)
        self._attachments = attachments

    def find_class(self, module_name: str, global_name: str) -> Any:
        if global_name == "beside" and module_name == __name__ and self._attachments:
            return self._attachments.__getitem__
        return super().find_class(module_name, global_name)


class _MainAdopter(_Unpickler):
    """Gives functions pickled by value from `__main__` the real `__main__` as their globals.

    cloudpickle would give them a dictionary of their own, in which nothing can be found by name.
    """

    def __init__(
        self, file: BinaryIO, buffers: Iterable[Any], attachments: Sequence[Attachment], main: types.ModuleType
    ) -> None:
        super().__init__(file, buffers, attachments)
        self._globals = main.__dict__
        self._classes: list[type] = []

    def load(self) -> Any:
        result = super().load()
        for cls in self._classes:
            if cls.__module__ == "__main__" and "." not in cls.__qualname__:
                self._globals.setdefault(cls.__name__, cls)
        return result

    def find_class(self, module_name: str, global_name: str) -> Any:
        found = super().find_class(module_name, global_name)
        if module_name == "cloudpickle.cloudpickle":
            if global_name == "_make_function":
                return self._with_main_globals(found)
            if global_name in ("_make_skeleton_class", "_make_skeleton_enum"):
                return self._remembering_classes(found)
        return found

    def _with_main_globals(self, make_function: Any) -> Any:
        def make(code: Any, base_globals: dict[str, Any], *rest: Any) -> Any:
            if base_globals.get("__name__") == "__main__":
                self._adopt_package(base_globals.get("__package__"))
                base_globals = self._globals
            return make_function(code, base_globals, *rest)

        return make

    def _adopt_package(self, package: str | None) -> None:
        """The script was run by ``python -m package.script``: its relative imports need the package, and
        spawned helpers the module's full name."""
        if not package or self._globals.get("__package__"):
            return
        self._globals["__package__"] = package
        file = self._globals.get("__file__")
        if file is not None:
            script = os.path.splitext(os.path.basename(file))[0]
            self._globals["__spec__"] = importlib.machinery.ModuleSpec(f"{package}.{script}", None, origin=file)

    def _remembering_classes(self, make_class: Any) -> Any:
        def make(*arguments: Any) -> Any:
            cls = make_class(*arguments)
            self._classes.append(cls)
            return cls

        return make


def culprit_of(obj: Any) -> Any:
    """The part of `obj` that cannot be pickled; None if all of it can."""
    error = _why_not(obj)
    return None if error is None else _find_culprit(obj, "", error)[1]


def _find_culprit(obj: Any, what: str, error: Exception) -> tuple[str, Any, Exception]:
    """Follow the parts that cannot be pickled down to one whose own parts all can."""
    path, reason = what, error
    seen = {id(obj)}
    for _ in range(MAX_DEPTH):
        for step, part in _parts(obj):
            if id(part) in seen or len(seen) > MAX_VISITED:
                continue
            seen.add(id(part))
            problem = _why_not(part)
            if problem is not None:
                path, obj, reason = _path_to(path, obj, step), part, problem
                break
        else:
            break
    return path, obj, reason


def _path_to(path: str, owner: Any, step: str) -> str:
    """The user's name of a part, where its owner is something that the user has never seen and says so: the mapping
    KNOWN_AS of its class has the names, or "" for a part that is nothing but what the owner is."""
    name = getattr(type(owner), "KNOWN_AS", {}).get(step.removeprefix("."))
    if name is None:
        return path + step
    return name or path


def _why_not(part: Any) -> Exception | None:
    try:
        _pickled(part)
    except Exception as error:
        return error
    return None


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """What pickling `obj` would pickle in turn, each with the step that leads to it."""
    if isinstance(obj, dict):
        for key, value in obj.items():
            yield f"[{key!r}]", value
            yield f" key {key!r}", key
    elif isinstance(obj, (list, tuple, set, frozenset)):
        for index, value in enumerate(obj):
            yield f"[{index}]", value
    elif isinstance(obj, types.MethodType):
        yield ".__self__", obj.__self__
        yield ".__func__", obj.__func__
    elif isinstance(obj, types.FunctionType):
        yield from _parts_of_function(obj)
    elif isinstance(obj, type):
        yield from ((f".{name}", value) for name, value in vars(obj).items() if not name.startswith("__"))
    elif not isinstance(obj, types.ModuleType):
        yield from _attributes(obj)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    of = f" of {function.__name__}()"
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f": closure variable {name!r}{of}", cell.cell_contents
        except ValueError:  # Not assigned yet.
            continue
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield f": global variable {name!r}{of}", function.__globals__[name]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        yield f": default of argument {name!r}{of}", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f": default of argument {name!r}{of}", value
    yield from _attributes(function)


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _attributes(obj: Any) -> Iterator[tuple[str, Any]]:
    try:
        state = obj.__getstate__() if not isinstance(obj, types.FunctionType) else vars(obj)
    except Exception:
        state = getattr(obj, "__dict__", None)
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            yield from ((f".{name}", value) for name, value in part.items())
    for name in ("func", "args", "keywords"):  # functools.partial keeps these outside its state.
        if name not in getattr(obj, "__dict__", {}) and type(obj).__name__ == "partial":
            yield f".{name}", getattr(obj, name)


def _type_name(obj: Any) -> str:
    cls = type(obj)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
