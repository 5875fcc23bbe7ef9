"""What becomes of a name of Ray's: it is ported, it stays, or nothing takes its place."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from types import ModuleType

from paceline.air.absent import no_such_name
from paceline.air.ray_alias import ADVICE as CORE
from paceline.compat.ray_alias import ADVICE, ELSEWHERE, INSIDE, OWN

_OF_ITS_OWN = frozenset([*OWN, *ELSEWHERE, "__version__"])
"""What paceline.ray has and paceline has not."""
_CLUSTER_FUNCTIONS = ("ray.init", "ray.is_initialized", "ray.shutdown")
_REGISTRY = ("ray.tune.register_env", "ray.tune.registry.register_env")


@dataclass(frozen=True)
class Verdict:
    """Exactly one of: a new name, advice, or neither (the name stays as it is)."""

    target: str | None = None
    advice: str | None = None

    @property
    def stays(self) -> bool:
        return self.target is None


KEPT = Verdict()


@dataclass(frozen=True)
class Judge:
    """Knows what else is in the file: RLlib is Ray's, and what it needs must stay Ray's too."""

    uses_rllib: bool = False
    uses_rl_trainer: bool = False

    def verdict(self, name: str) -> Verdict:
        """For a name such as ``ray.train.torch.TorchTrainer``."""
        if _is_or_is_in(name, "ray.rllib"):
            return KEPT
        if self.uses_rllib or self.uses_rl_trainer:
            if any(_is_or_is_in(name, each) for each in _REGISTRY):
                return KEPT
            if not self.uses_rl_trainer and any(_is_or_is_in(name, each) for each in _CLUSTER_FUNCTIONS):
                return KEPT
        return _verdict(name)


def _is_or_is_in(name: str, prefix: str) -> bool:
    return f"{name}.".startswith(f"{prefix}.")


@functools.cache
def _verdict(name: str) -> Verdict:
    _, *parts = name.split(".")
    if not parts:
        return Verdict("paceline")
    if parts[0] in _OF_ITS_OWN:
        package = "paceline.ray"
    elif parts[0] in ADVICE:
        table = CORE if parts[0] in CORE else ADVICE
        return Verdict(advice=str(no_such_name("ray", parts[0], table)))
    else:
        package = "paceline"
    advice = _why_absent(package, parts)
    return Verdict(advice=advice) if advice else Verdict(".".join([package, *parts]))


def _why_absent(place: str, parts: list[str]) -> str | None:
    """What importing the name would say, or None if it exists, even where its framework is not installed."""
    found: object = importlib.import_module(place)
    for part in parts:
        if not isinstance(found, ModuleType):
            return None  # an attribute of a class or function: that is not for imports to decide
        place = f"{found.__name__}.{part}"
        try:
            found = _member(found, part)
        except ModuleNotFoundError as error:
            ours = (error.name or "").partition(".")[0] == place.partition(".")[0]
            return _sentence(str(error), place) if ours else None
        except ImportError:
            return None
    return None


def _member(module: ModuleType, name: str) -> object:
    try:
        return getattr(module, name)
    except AttributeError as missing:
        if not hasattr(module, "__path__"):
            raise ModuleNotFoundError(str(missing), name=module.__name__) from None
        return importlib.import_module(f"{module.__name__}.{name}")


def _sentence(text: str, place: str) -> str:
    """The advice where there is one; what Python says of an unknown name would not help a reader."""
    if "does not exist here" in text or "did you mean" in text:
        return text
    name = place.removeprefix("paceline.")
    if "._" in f".{name}":
        return f"ray.{name} does not exist here: {INSIDE}."
    return f"ray.{name} has no counterpart in paceline."
