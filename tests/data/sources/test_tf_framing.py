"""The checksums of TFRecord frames."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from paceline.data.sources import tf_format
from paceline.data.sources.tf_format import crc32c_by_tables as crc32c


def test_crc32c_against_published_values() -> None:
    # The check value of the algorithm, and the examples of RFC 3720, appendix B.4.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"") == 0


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 1023, 1024, 1025, 1026, 1027, 1028, 3000])
def test_crc32c_over_parts_equals_bit_by_bit(length: int) -> None:
    content = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8).tobytes()
    state = 0xFFFFFFFF
    for byte in content:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    assert crc32c(content) == state ^ 0xFFFFFFFF


def test_the_library_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("google_crc32c")
    library.value = lambda content: 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google_crc32c", library)
    monkeypatch.setattr(tf_format, "_library", tf_format._library.__wrapped__)
    assert tf_format.crc32c(b"123456789") == 7
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert tf_format.crc32c(b"123456789") == 0xE3069283
