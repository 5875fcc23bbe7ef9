"""What the files of a write method are called."""

from __future__ import annotations

from typing import Any


class FilenameProvider:
    """Base class: a subclass names the file of each block, with its ending.

    `block` is the block's first rows as an Arrow table. Newer programs have a parameter `write_uuid` before
    `task_index`; both forms are called as they are defined.
    """

    def get_filename_for_block(self, block: Any, task_index: int, block_index: int) -> str:
        raise NotImplementedError(f"{type(self).__name__} must define get_filename_for_block")

    def get_filename_for_row(self, row: dict[str, Any], task_index: int, block_index: int, row_index: int) -> str:
        raise NotImplementedError(f"{type(self).__name__} must define get_filename_for_row")
