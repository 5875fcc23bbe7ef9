"""The small operations that everything else in storage is built from."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.storage.files import write_durably, write_whole
from tests.storage.small_disk import run_on_small_disk


def test_a_small_file_that_cannot_get_its_name_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "error.txt").mkdir()
    for write in (write_whole, write_durably):
        with pytest.raises(OSError, match="directory"):
            write(tmp_path / "error.txt", b"text")
    assert [path.name for path in tmp_path.iterdir()] == ["error.txt"]


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from paceline.storage.files import write_durably\n"
        "disk = Path(sys.argv[1]); write_durably(disk / 'file', b'old')\n"
        "try: write_durably(disk / 'file', bytes(2 << 20))\n"
        "except OSError as error: print(error.errno, (disk / 'file').read_text(), os.listdir(disk))\n"
    )
    assert run_on_small_disk(program, tmp_path) == "28 old ['file']\n"
