"""Refuses a description of a model from which tf_keras would run code, or import or read what the file names.

Keras 3 looks for itself. tf_keras guards lambdas only, and takes any function of any module by name. So what it is
given is looked through first, wherever in the description it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from paceline.air.errors import CheckpointError

_VALUES = ("__bytes__", "__ellipsis__", "__numpy__", "__tensor__", "__tuple__", "__typespec__", "__wrapt__")
"""What Keras calls values that JSON does not have."""
_CODE = ("Lambda", "__lambda__")
_MODULES = ("keras", "tf_keras", "builtins")
_FUNCTIONS_ARE_IN = ("activations", "constraints", "initializers", "losses", "metrics", "regularizers")
_NO_MATHEMATICS = ("get", "serialize", "deserialize")
_CALLS_OF_TENSORFLOW = {"TFOpLambda": "function", "SlicingOpLambda": "function", "ClassMethod": "cls_symbol"}
"""Layers that call what their setting names: users get them by writing `tf.reshape(x, ...)` among layers."""
_PURE_CLASSES = ("RaggedTensor", "SparseTensor", "Tensor")
_PURE_NAMESPACES = (
    *("__operators__", "bitwise", "dtypes", "image", "linalg", "math", "nn", "quantization", "ragged", "random"),
    *("sets", "signal", "sparse", "strings", "keras.activations", "keras.backend", "keras.losses", "keras.metrics"),
)
_NOT_PURE = (
    *("load_file_system_library", "load_library", "load_op_library", "matching_files", "numpy_function", "print"),
    *("Print", "py_func", "py_function", "read_file", "write_file"),
)


def refuse_code(config: Any, custom_objects: Mapping[str, Any] | None, file_name: str) -> None:
    """Raise CheckpointError if tf_keras would do more for this description than put its own layers together."""
    for each in _described(config):
        reason = _objection(each, custom_objects or {})
        if reason is not None:
            raise CheckpointError(
                f"{file_name} holds {reason}, which is not loaded without being asked for. Classes and functions of "
                "your own are passed as get_model(custom_objects={'Name': Name}). If you know where the checkpoint "
                "comes from, get_model(safe_mode=False) loads all of it."
            )


def _described(config: Any) -> Iterator[Mapping[str, Any]]:
    """Every description of a class or function, however deep."""
    waiting = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if isinstance(value.get("class_name"), str):
                yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _objection(described: Mapping[str, Any], custom_objects: Mapping[str, Any]) -> str | None:
    name, settings, module = described["class_name"], described.get("config"), described.get("module")
    if name in _CODE:
        return f"code ({name})"
    if name == "function":
        fine = _is_known(settings, custom_objects) or _is_mathematics(settings, module)
        return None if fine else f"the function {settings!r} of {module!r}"
    if _is_known(described.get("registered_name", name), custom_objects):
        return None
    modules = (*_MODULES, "tensorflow") if name == "__typespec__" else _MODULES
    if str(module or "keras").partition(".")[0] not in modules:
        return f"the class {name!r} of the module {module!r}"
    # Where there is no class of such a name, tf_keras takes a function.
    if not all(_is_class_name(described.get(key) or name) for key in ("class_name", "registered_name", "spec_name")):
        return f"{name!r} of {module!r}, which is no class"
    if isinstance(settings, Mapping) and isinstance(settings.get("vocabulary"), str):
        return f"a {name} that reads the file {settings['vocabulary']!r}"
    if name in _CALLS_OF_TENSORFLOW and not _is_pure(settings, _CALLS_OF_TENSORFLOW[name]):
        return f"a call of TensorFlow ({settings})"
    return None


def _is_known(name: Any, custom_objects: Mapping[str, Any]) -> bool:
    """Whether tf_keras takes what the user has given or registered under the name, and imports nothing."""
    from tf_keras.saving import get_registered_object

    return isinstance(name, str) and get_registered_object(name, custom_objects) is not None


def _is_mathematics(name: Any, module: Any) -> bool:
    """Whether it is one of the functions that Keras has for layers, losses and the like."""
    import tf_keras

    if not isinstance(name, str) or name in _NO_MATHEMATICS or str(module).partition(".")[0] not in _MODULES:
        return False
    return any(name in vars(getattr(tf_keras, each)) for each in _FUNCTIONS_ARE_IN)


def _is_class_name(name: Any) -> bool:
    """Whether it begins with a capital; "package>Name" is a class that was registered."""
    last = str(name).rpartition(">")[2].rpartition(".")[2]
    return last in _VALUES or last.lstrip("_")[:1].isupper()


def _is_pure(settings: Any, key: str) -> bool:
    """Whether the operation only computes: others write files, or load libraries."""
    symbol = settings.get(key, "") if isinstance(settings, Mapping) else ""
    namespace, _, name = str(symbol).removeprefix("compat.v1.").rpartition(".")
    if key == "cls_symbol":
        return name in _PURE_CLASSES
    if not namespace:
        return name not in _NOT_PURE
    return name not in _NO_MATHEMATICS and f"{namespace}.".startswith(tuple(f"{pure}." for pure in _PURE_NAMESPACES))
