"""How FSDP2 gathers a model part by part, and what that takes in memory at the fullest moment of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from paceline.air.errors import ConfigError


@dataclass(eq=False)
class Part:
    """Parameters that are gathered together: those of a layer, without those of layers inside of it."""

    enclosing: tuple[Part, ...]
    """They are gathered as long as this one computes."""
    parameters: list[nn.Parameter] = field(default_factory=list)


class Parts:
    """What FSDP2 gathers at a time, in the order of definition: the whole model, or its layers and the rest."""

    def __init__(self, model: nn.Module, layers: str | Sequence[str] | None) -> None:
        self._layers = _layers(model, layers)
        self._seen: set[nn.Module | nn.Parameter] = set()
        self._begun: list[Part] = []
        self._ended: list[Part] = []
        self._divide(model, ())
        # What has no parameters of its own is not gathered.
        self.begun = [part for part in self._begun if part.parameters]
        """In the order in which they begin to compute."""
        self.ended = [part for part in self._ended if part.parameters]
        """In the order in which they have computed: inner ones come before the one around them."""

    def _divide(self, module: nn.Module, enclosing: tuple[Part, ...]) -> None:
        part = Part(enclosing)
        self._begun.append(part)
        self._collect(module, part)
        self._ended.append(part)

    def _collect(self, module: nn.Module, part: Part) -> None:
        """Add the parameters to the part, except for those of layers inside, which become parts."""
        own = [each for each in module.parameters(recurse=False) if each not in self._seen]
        self._seen.update(own)
        part.parameters.extend(own)
        for child in module.children():
            if child in self._seen:
                continue
            self._seen.add(child)
            if child in self._layers:
                self._divide(child, (*part.enclosing, part))
            else:
                self._collect(child, part)


def _layers(model: nn.Module, chosen: str | Sequence[str] | None) -> set[nn.Module]:
    """The modules that are sharded on their own."""
    if chosen is None:
        return set()
    if chosen == "auto":
        lists: list[nn.Module] = [each for each in model.modules() if isinstance(each, nn.ModuleList)]
        containers = lists or [each for each in model.modules() if isinstance(each, nn.Sequential)][:1]
        members = {member for each in containers for member in each.children()}
        return {each for each in members if not isinstance(each, nn.ModuleList)}  # a list has no forward()
    names = {chosen} if isinstance(chosen, str) else set(chosen)
    found = {each for each in model.modules() if type(each).__name__ in names}
    missing = names - {type(each).__name__ for each in found}
    if missing:
        raise ConfigError(f"{type(model).__name__} has no layers of class {', '.join(sorted(missing))}.")
    return found


@dataclass(frozen=True)
class PartSize:
    """What one part takes in full, in bytes."""

    gathered: int = 0
    """Its parameters."""
    buffer: int = 0
    """Where they arrive, before the part computes."""
    gradients: int = 0
    """Before they are reduced."""
    reducing: int = 0
    """What is there besides while they are reduced: buffers for all of them and for this rank's shard."""
    sent: int = 0
    """The buffer that stays until the gradients of the next part are reduced."""


def fullest(parts: Parts, sizes: dict[Part, PartSize]) -> int:
    """The largest sum of full parameters, full gradients and buffers of collectives in a step.

    In the backward pass of a part these exist: its parameters and gradients, those of the parts around it, the buffer
    of the part that comes next, which is gathered ahead, and the one of the part before, whose gradients are being
    reduced.
    """
    nothing = PartSize()
    previous = [nothing, *(sizes[part] for part in parts.begun)]
    following = [*previous[2:], nothing]
    first_inside: dict[Part, int] = {}
    for number, part in enumerate(parts.ended):
        for each in (part, *part.enclosing):
            first_inside.setdefault(each, number)
    peak = 0
    for part, before, after in zip(parts.begun, previous, following, strict=False):
        size = sizes[part]
        around = [sizes[each] for each in part.enclosing if each.parameters]
        forward = size.buffer + max(before.buffer, size.gathered)
        ahead = sizes[parts.ended[first_inside[part] - 1]].buffer if first_inside[part] else 0
        # Its parameters are let go before its gradients are reduced.
        backward = ahead + size.gradients + max(size.gathered + after.sent, size.reducing)
        backward += sum(each.gradients for each in around)
        peak = max(peak, sum(each.gathered for each in around) + max(forward, backward))
    return peak
