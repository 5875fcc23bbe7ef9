"""What a Schema of tensorflow-metadata says of features. The package itself is not needed: the message is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from paceline.air.errors import ConfigError

_KINDS: dict[int, Literal["bytes", "int64", "float"]] = {1: "bytes", 2: "int64", 3: "float"}
"""FeatureType of tensorflow_metadata.proto.v0.schema_pb2."""


@dataclass(frozen=True)
class DeclaredFeature:
    kind: Literal["bytes", "int64", "float"]
    single: bool | None
    """True: exactly one value; False: a list; None: the schema does not say."""


def declared_features(schema: Any, function: str) -> dict[str, DeclaredFeature]:
    """The features by name."""
    features = getattr(schema, "feature", None)
    if features is None:
        raise ConfigError(
            f"{function}: tf_schema is a {type(schema).__name__}; give a Schema of tensorflow-metadata"
            " (tensorflow_metadata.proto.v0.schema_pb2)."
        )
    return {feature.name: _declared(feature, function) for feature in features}


def _declared(feature: Any, function: str) -> DeclaredFeature:
    if feature.type not in _KINDS:
        raise ConfigError(
            f"{function}: feature {feature.name!r} of tf_schema has type {feature.type}; give BYTES, INT or FLOAT."
        )
    return DeclaredFeature(_KINDS[feature.type], _is_single(feature))


def _is_single(feature: Any) -> bool | None:
    if _has(feature, "value_count"):
        return bool(feature.value_count.min == feature.value_count.max == 1)
    if _has(feature, "shape"):
        return not len(feature.shape.dim)
    return None


def _has(feature: Any, name: str) -> bool:
    try:
        return bool(feature.HasField(name))
    except (AttributeError, ValueError):  # a newer schema may not know it
        return False
