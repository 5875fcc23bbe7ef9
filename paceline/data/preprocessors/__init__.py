"""The built-in preprocessors; each is loaded on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from paceline.air.lazy import lazy_imports

_ADVICE = {"utils": "pass a function of your own as tokenization_fn; the default one splits at spaces"}

with lazy_imports(__name__, advice=_ADVICE):
    from paceline.data.preprocessor import Preprocessor as Preprocessor
    from paceline.data.preprocessors.chain import Chain as Chain
    from paceline.data.preprocessors.concatenator import Concatenator as Concatenator
    from paceline.data.preprocessors.discretizers import CustomKBinsDiscretizer as CustomKBinsDiscretizer
    from paceline.data.preprocessors.discretizers import UniformKBinsDiscretizer as UniformKBinsDiscretizer
    from paceline.data.preprocessors.encoders import Categorizer as Categorizer
    from paceline.data.preprocessors.encoders import LabelEncoder as LabelEncoder
    from paceline.data.preprocessors.encoders import MultiHotEncoder as MultiHotEncoder
    from paceline.data.preprocessors.encoders import OneHotEncoder as OneHotEncoder
    from paceline.data.preprocessors.encoders import OrdinalEncoder as OrdinalEncoder
    from paceline.data.preprocessors.functions import BatchMapper as BatchMapper
    from paceline.data.preprocessors.functions import TorchVisionPreprocessor as TorchVisionPreprocessor
    from paceline.data.preprocessors.imputer import SimpleImputer as SimpleImputer
    from paceline.data.preprocessors.scalers import MaxAbsScaler as MaxAbsScaler
    from paceline.data.preprocessors.scalers import MinMaxScaler as MinMaxScaler
    from paceline.data.preprocessors.scalers import Normalizer as Normalizer
    from paceline.data.preprocessors.scalers import PowerTransformer as PowerTransformer
    from paceline.data.preprocessors.scalers import RobustScaler as RobustScaler
    from paceline.data.preprocessors.scalers import StandardScaler as StandardScaler
    from paceline.data.preprocessors.vectorizers import CountVectorizer as CountVectorizer
    from paceline.data.preprocessors.vectorizers import FeatureHasher as FeatureHasher
    from paceline.data.preprocessors.vectorizers import HashingVectorizer as HashingVectorizer
    from paceline.data.preprocessors.vectorizers import Tokenizer as Tokenizer


def loader(stored_name: str) -> Callable[[dict[str, Any]], Any]:
    """What makes a preprocessor from its stored state, by the `stored_name` of its class.

    The name may come from a file that somebody else wrote: only the names of this package are looked up.
    """
    package, _, name = stored_name.rpartition(".")
    here = sys.modules[__name__]
    if package != __name__ or name not in here.__all__:
        from paceline.air.errors import DataError

        raise DataError(f"There is no preprocessor {stored_name!r} in this version.")
    from_state: Callable[[dict[str, Any]], Any] = getattr(here, name).from_state
    return from_state
