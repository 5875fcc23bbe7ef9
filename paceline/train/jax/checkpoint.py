"""JaxCheckpoint: the state of a training, a tree of arrays, as a checkpoint in Orbax's format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointError, ConfigError
from paceline.air.temporary import temporary_directory
from paceline.storage.stager import Stager
from paceline.train.model_checkpoint import ModelCheckpoint, ModelSource, file_names

if TYPE_CHECKING:
    from paceline.air.packing import FileSink

STATE_FOLDER = "state"
STATE_KEY = "state"
_STRUCTURE = "_METADATA"
"""Orbax's file about the structure of a tree: the folder that has it holds one."""
_FOLDERS = (STATE_FOLDER, "default", ".")
"""Where such a folder may be; the second is what Orbax's own CheckpointManager calls it."""
_PLAIN = (bool, int, float, str)

C = TypeVar("C", bound="JaxCheckpoint")


@dataclass(frozen=True)
class JaxState(ModelSource):
    """A state in this process. Each process writes its own part of arrays that are sharded over several; of all other
    values the first process writes its own."""

    state: Any
    part: int | None = None

    def describe(self) -> str:
        import jax

        return f"a state of {len(jax.tree.leaves(self.state))} arrays and values"

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        # On the disk that the files are meant for, so that they need not be copied there.
        place = str(sink.directory) if isinstance(sink, Stager) else None
        with temporary_directory(place=place) as folder:
            target = folder / STATE_FOLDER
            target.mkdir()
            _write(target, self.state)
            sink.add_directory(str(folder), move=True)

    def load_dict(self) -> dict[str, Any]:
        return {STATE_KEY: self.state}


class JaxCheckpoint(ModelCheckpoint):
    """A checkpoint that holds a tree of arrays and plain values: parameters, the optimizer's state, the step.

    The files are Orbax's, in the folder "state": one file for each part of an array that one device had. Reading them
    runs no code, and any number of processes can read what any other number has written.
    """

    @classmethod
    def from_state(cls: type[C], state: Any, *, preprocessor: Any = None) -> C:
        """A checkpoint of a state: nested dicts, lists and other trees that JAX knows, of arrays, numbers and strings.

        Every rank calls it, as every rank reports. Report it before a step that is given the state's memory
        (`donate_argnums`): the files are written by `report()`.
        """
        import jax

        leaves = jax.tree_util.tree_leaves_with_path(state)
        if not leaves:
            raise ConfigError("from_state() got a state without any array or value.")
        for path, leaf in leaves:
            if not _is_array(leaf) and not isinstance(leaf, _PLAIN):
                raise ConfigError(
                    f"from_state(): state{jax.tree_util.keystr(path)} is a {type(leaf).__name__}. A state holds "
                    "arrays, numbers and strings; leave out other objects and create them again when you resume."
                )
            if _is_array(leaf) and not leaf.size:
                raise ConfigError(
                    f"from_state(): state{jax.tree_util.keystr(path)} has no elements (its shape is {leaf.shape}), and "
                    "Orbax does not write such arrays. Leave it out."
                )
        _refuse_equal_names([path for path, _ in leaves])
        is_sharded = any(_is_sharded(leaf) for _, leaf in leaves)
        return cls._of(JaxState(state, jax.process_index() if is_sharded else None), preprocessor)

    def get_state(self, target: Any = None) -> Any:
        """The state. Without a target: numpy arrays in dicts and lists.

        `target` is a tree of the same structure, such as the state of a new training: each array takes type and
        sharding of the one in the target, on however many processes there are now. `jax.ShapeDtypeStruct`s with a
        sharding are enough.
        """
        if isinstance(self._source, JaxState):
            state = self._source.state
            return state if target is None else _fitted(state, target, self)
        with self._directory() as folder:
            return _read(_state_folder(Path(folder), self), target, self)


def _refuse_equal_names(paths: list[Any]) -> None:
    """Orbax names the files of a leaf by its keys, joined with dots."""
    import jax

    named: dict[str, Any] = {}
    for path in paths:
        name = ".".join(jax.tree_util.keystr((key,), simple=True) for key in path)
        other = named.setdefault(name, path)
        if other is not path:
            raise ConfigError(
                f"from_state(): state{jax.tree_util.keystr(other)} and state{jax.tree_util.keystr(path)} would have "
                f"the same name in the checkpoint, {name!r}. Rename one of the keys."
            )


def _is_array(leaf: Any) -> bool:
    import jax
    import numpy as np

    return isinstance(leaf, jax.Array | np.ndarray | np.number | np.bool_)


def _is_sharded(leaf: Any) -> bool:
    """Whether no process has all of it."""
    import jax

    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated


def _is_key(leaf: Any) -> bool:
    import jax

    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


# -- files -----------------------------------------------------------------------------------------


def _handler() -> Any:
    """Orbax's writer and reader of one tree, which waits for no other process.

    Without its database format (OCDBT), in which one process has to put the others' files together at the end.
    """
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    kinds, own = ocp.type_handlers, jax.process_index()
    scalars = kinds.ScalarHandler()
    registry = kinds.create_type_handler_registry(
        (int, scalars),
        (float, scalars),
        (np.number, scalars),
        (np.ndarray, kinds.NumpyHandler()),
        (jax.Array, kinds.ArrayHandler(primary_host=None)),
        (str, kinds.StringHandler()),
    )
    return ocp.PyTreeCheckpointHandler(
        use_ocdbt=False,
        use_compression=False,
        type_handler_registry=registry,
        multiprocessing_options=ocp.options.MultiprocessingOptions(
            primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"rank_{own}"
        ),
    )


def _write(folder: Path, state: Any) -> None:
    import jax
    import orbax.checkpoint as ocp
    from etils import epath

    try:
        values = jax.tree.map(_writable, state)
        handler = _handler()
        handler.save(epath.Path(folder), args=ocp.args.PyTreeSave(values))
        handler.close()
    except RuntimeError as error:
        if "deleted" not in str(error):
            raise
        raise CheckpointError(
            f"The state's memory was donated before the checkpoint was written: {error} Call report() with the "
            "checkpoint before the next step, or leave the state out of donate_argnums."
        ) from error


def _writable(leaf: Any) -> Any:
    """As one of the kinds that are written."""
    import jax
    import numpy as np

    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    if _is_sharded(leaf) or isinstance(leaf, _PLAIN):
        return leaf
    return np.asarray(leaf)


def _state_folder(folder: Path, checkpoint: Checkpoint) -> Path:
    for name in _FOLDERS:
        if (folder / name / _STRUCTURE).is_file():
            return folder / name
    raise CheckpointError(
        f"{checkpoint!r} holds no state that Orbax wrote: its files are {file_names(folder)}. Save one with "
        "JaxCheckpoint.from_state(); what Checkpoint.from_dict() saved is read with to_dict()."
    )


def _read(folder: Path, target: Any, checkpoint: Checkpoint) -> Any:
    import jax
    import numpy as np
    import orbax.checkpoint as ocp
    from etils import epath

    handler, path = _handler(), epath.Path(folder)
    try:
        if target is None:
            plain = ocp.metadata.ScalarMetadata | ocp.metadata.StringMetadata
            as_array = ocp.RestoreArgs(restore_type=np.ndarray)
            how = jax.tree.map(
                lambda found: ocp.RestoreArgs() if isinstance(found, plain) else as_array, handler.metadata(path).tree
            )
            return handler.restore(path, args=ocp.args.PyTreeRestore(restore_args=how))
        wanted = jax.tree.map(_without_key, target)
        how = jax.tree.map(_restore_argument, wanted)
        found = handler.restore(path, args=ocp.args.PyTreeRestore(item=wanted, restore_args=how))
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error).partition("If this mismatch is intentional")[0].rstrip()  # advice about Orbax's arguments
        raise CheckpointError(f"{checkpoint!r} cannot be read into the target: {reason}") from error
    return _fitted(found, target, checkpoint)


def _without_key(leaf: Any) -> Any:
    """A random key is stored as the numbers it is made of."""
    import jax

    return jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf


def _restore_argument(leaf: Any) -> Any:
    """How a value is read: a part of an array, or all of it."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    if _is_spread(leaf):
        return ocp.ArrayRestoreArgs(
            restore_type=jax.Array, sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype
        )
    return ocp.RestoreArgs() if isinstance(leaf, _PLAIN) else ocp.RestoreArgs(restore_type=np.ndarray)


def _is_spread(leaf: Any) -> bool:
    """Whether the array is to be one of several processes."""
    sharding = getattr(leaf, "sharding", None)
    return sharding is not None and not sharding.is_fully_addressable


def _fitted(state: Any, target: Any, checkpoint: Checkpoint) -> Any:
    """The values as the target has them: types, shardings and random keys."""
    import jax

    try:
        return jax.tree_util.tree_map_with_path(_fitted_leaf, target, state)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint!r} does not fit the target: {error}") from error


def _fitted_leaf(path: Any, target: Any, value: Any) -> Any:
    import jax
    import numpy as np

    if isinstance(target, _PLAIN):
        return type(target)(value)
    if _is_key(target):
        return value if _is_key(value) else jax.random.wrap_key_data(value, impl=jax.random.key_impl(target))
    if np.shape(value) != np.shape(target):
        name = jax.tree_util.keystr(path)
        raise ValueError(f"{name} has the shape {np.shape(value)}, and {np.shape(target)} in the target")
    if isinstance(target, np.ndarray | np.generic):
        values = np.asarray(value, target.dtype)
        return values if isinstance(target, np.ndarray) else values[()]
    if isinstance(value, jax.Array) and _is_spread(target) and value.sharding == target.sharding:
        return value.astype(target.dtype)
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return jax.device_put(value.astype(target.dtype), target.sharding)
    values = np.asarray(value, target.dtype)
    if _is_spread(target):
        return jax.make_array_from_callback(values.shape, target.sharding, lambda index: values[index])
    sharding = getattr(target, "sharding", None)
    return jax.numpy.asarray(values) if sharding is None else jax.device_put(values, sharding)
