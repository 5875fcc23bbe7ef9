"""Models whose sizes are known, and what their tensors take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.narrow(torch.relu(self.wide(self.norm(x))))
        return y


class Tied(nn.Module):
    """Blocks between an embedding and a head that share their weight; rows that no world size divides; a buffer; a
    frozen parameter."""

    def __init__(self, width: int = 64, depth: int = 4, words: int = 301) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        self.scale = nn.Parameter(torch.ones(width), requires_grad=False)
        self.register_buffer("shift", torch.zeros(3, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) * self.scale + self.shift[0]
        for block in self.blocks:
            x = block(x)
        y: torch.Tensor = self.head(x)
        return y


class Nested(nn.Module):
    """Lists inside of lists, whose members are sharded on their own, and no two layers of one size."""

    def __init__(self, width: int = 64, words: int = 301) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Branching(width) for _ in range(3))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        y: torch.Tensor = self.head(x)
        return y


class Branching(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.last = Block(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.norms[1](x + self.first(self.norms[0](x))))
        return y


def held(tensors: Iterable[Any]) -> int:
    """Bytes of the memory behind tensors, of sharded ones on this rank; what several share counts once."""
    storages = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if isinstance(local, torch.Tensor):
            storages[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
    return sum(storages.values())


def held_by(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    return {
        "parameters": held(model.parameters()),
        "buffers": held(model.buffers()),
        "gradients": held(each.grad for each in model.parameters()),
        "optimizer": held(value for state in optimizer.state.values() for value in state.values()),
    }
