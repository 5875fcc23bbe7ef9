"""The built-in preprocessors; each is loaded on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

if TYPE_CHECKING:
    from paceline.data.preprocessor import Preprocessor as Preprocessor
    from paceline.data.preprocessors.batch_mapper import BatchMapper as BatchMapper
    from paceline.data.preprocessors.categorizer import Categorizer as Categorizer
    from paceline.data.preprocessors.chain import Chain as Chain
    from paceline.data.preprocessors.concatenator import Concatenator as Concatenator
    from paceline.data.preprocessors.discretizers import CustomKBinsDiscretizer as CustomKBinsDiscretizer
    from paceline.data.preprocessors.discretizers import UniformKBinsDiscretizer as UniformKBinsDiscretizer
    from paceline.data.preprocessors.encoders import MultiHotEncoder as MultiHotEncoder
    from paceline.data.preprocessors.encoders import OneHotEncoder as OneHotEncoder
    from paceline.data.preprocessors.encoders import OrdinalEncoder as OrdinalEncoder
    from paceline.data.preprocessors.hasher import FeatureHasher as FeatureHasher
    from paceline.data.preprocessors.imputer import SimpleImputer as SimpleImputer
    from paceline.data.preprocessors.label_encoder import LabelEncoder as LabelEncoder
    from paceline.data.preprocessors.normalizer import Normalizer as Normalizer
    from paceline.data.preprocessors.power import PowerTransformer as PowerTransformer
    from paceline.data.preprocessors.scalers import MaxAbsScaler as MaxAbsScaler
    from paceline.data.preprocessors.scalers import MinMaxScaler as MinMaxScaler
    from paceline.data.preprocessors.scalers import RobustScaler as RobustScaler
    from paceline.data.preprocessors.scalers import StandardScaler as StandardScaler
    from paceline.data.preprocessors.tokenizer import Tokenizer as Tokenizer
    from paceline.data.preprocessors.torch_vision import TorchVisionPreprocessor as TorchVisionPreprocessor
    from paceline.data.preprocessors.vectorizers import CountVectorizer as CountVectorizer
    from paceline.data.preprocessors.vectorizers import HashingVectorizer as HashingVectorizer

_HOMES = {
    "BatchMapper": "batch_mapper",
    "Categorizer": "categorizer",
    "Chain": "chain",
    "Concatenator": "concatenator",
    "CountVectorizer": "vectorizers",
    "CustomKBinsDiscretizer": "discretizers",
    "FeatureHasher": "hasher",
    "HashingVectorizer": "vectorizers",
    "LabelEncoder": "label_encoder",
    "MaxAbsScaler": "scalers",
    "MinMaxScaler": "scalers",
    "MultiHotEncoder": "encoders",
    "Normalizer": "normalizer",
    "OneHotEncoder": "encoders",
    "OrdinalEncoder": "encoders",
    "PowerTransformer": "power",
    "RobustScaler": "scalers",
    "SimpleImputer": "imputer",
    "StandardScaler": "scalers",
    "Tokenizer": "tokenizer",
    "TorchVisionPreprocessor": "torch_vision",
    "UniformKBinsDiscretizer": "discretizers",
}

__all__ = [*_HOMES, "Preprocessor"]

_ADVICE = {"utils": "pass a function of your own as tokenization_fn; the default one splits at spaces"}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "Preprocessor":
        home = "paceline.data.preprocessor"
    elif name in _HOMES:
        home = f"{__name__}.{_HOMES[name]}"
    else:
        raise no_such_name(__name__, name, _ADVICE)
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def loader(stored_name: str) -> Callable[[dict[str, Any]], Any]:
    """What makes a preprocessor from its stored state, by the `stored_name` of its class.

    The name may come from a file that somebody else wrote: only the names of this package are looked up.
    """
    package, _, name = stored_name.rpartition(".")
    if package != __name__ or name not in __all__:
        from paceline.air.errors import DataError

        raise DataError(f"There is no preprocessor {stored_name!r} in this version.")
    kind = __getattr__(name)
    from_state: Callable[[dict[str, Any]], Any] = kind.from_state
    return from_state
