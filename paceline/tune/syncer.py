"""Old path of SyncConfig."""

from paceline.air.absent import advise
from paceline.air.sync_config import SyncConfig

__all__ = ["SyncConfig"]

_STORAGE = "RunConfig(storage_path=...) names a directory, a mounted one, or a URI of any fsspec filesystem"
advise(__name__, dict.fromkeys(("Syncer", "SyncerCallback", "get_node_to_storage_syncer"), _STORAGE))
