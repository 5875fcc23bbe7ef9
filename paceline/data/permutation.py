"""Random orders that need no memory: where row i of an epoch comes from is computed, not stored.

A keyed bijection of 0..n-1 (a Feistel network) takes the place of a shuffled list of n numbers.
Any part of an order can be had on its own, on any machine, and is the same everywhere: the
arithmetic is fixed here and does not change with a library's version.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]

_ROUNDS = 8
_MASK = (1 << 64) - 1
_ODD_1 = np.uint64(0xBF58476D1CE4E5B9)
_ODD_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _HALF = np.uint64(30), np.uint64(27), np.uint64(32)
_LARGEST = 1 << 62


def permute(positions: npt.ArrayLike, n: int, seed: int, epoch: int) -> Positions:
    """Which of n rows stands at each of these positions in the order of (seed, epoch).

    All positions together give every row exactly once. Positions lie in 0..n-1.
    """
    current = np.array(positions, dtype=np.int64)  # a copy: it is changed below
    if current.size == 0:
        return current
    if not 0 < n <= _LARGEST or current.min() < 0 or current.max() >= n:
        raise ValueError(f"positions {current.min()} to {current.max()} are not all among {n} rows")
    keys = _round_keys(seed, epoch)
    side = math.isqrt(n - 1) + 1  # the network works on side x side numbers, hardly more than n
    flat = current.reshape(-1).view(np.uint64)
    outside = np.arange(flat.size)
    while outside.size:  # what left 0..n-1 is sent through again until it is back
        moved = _network(flat[outside], side, keys)
        flat[outside] = moved
        outside = outside[moved >= n]
    return current


def block_permutation(n: int, seed: int, epoch: int) -> Positions:
    """The order of n blocks in one epoch."""
    return permute(np.arange(n, dtype=np.int64), n, seed, epoch)


def _network(numbers: npt.NDArray[np.uint64], side: int, keys: list[np.uint64]) -> npt.NDArray[np.uint64]:
    width = np.uint64(side)
    left, right = np.divmod(numbers, width)
    for key in keys:
        moved = left + _below(width, right, key)
        left, right = right, np.minimum(moved, moved - width)  # modulo: below zero wraps to something huge
    result: npt.NDArray[np.uint64] = left * width + right
    return result


def _below(width: np.uint64, values: npt.NDArray[np.uint64], key: np.uint64) -> npt.NDArray[np.uint64]:
    """A hash of each value, from 0 to width - 1. Products wrap at 64 bits, as they should."""
    mixed = values + key
    mixed ^= mixed >> _SHIFT_1
    mixed *= _ODD_1
    mixed ^= mixed >> _SHIFT_2
    mixed *= _ODD_2
    mixed >>= _HALF
    mixed *= width
    mixed >>= _HALF
    return mixed


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    state = _mix((seed & _MASK) ^ _mix((epoch + 1) & _MASK))
    keys = []
    for _ in range(_ROUNDS):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        keys.append(np.uint64(_mix(state)))
    return keys


def _mix(value: int) -> int:
    """Every bit of the input changes about half of the bits of the output."""
    value = ((value ^ (value >> 30)) * int(_ODD_1)) & _MASK
    value = ((value ^ (value >> 27)) * int(_ODD_2)) & _MASK
    return value ^ (value >> 31)
