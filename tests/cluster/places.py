"""A cluster with a directory that its hosts share, and with a bucket: where runs of tests have their storage."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paceline
from tests.cluster.ray_hosts import RESULTS, RayHosts

S3_PORT = 5000


@dataclass(frozen=True)
class Places:
    """A cluster, and where a run can have its storage: seen from the host of its driver, h1."""

    ray_hosts: RayHosts
    shared: Path
    variables: dict[str, str]

    def storage(self, kind: str) -> str:
        name = uuid.uuid4().hex
        return {"shared": f"{self.shared}/{name}", "bucket": f"s3://bucket/{name}", "local": f"{RESULTS}/{name}"}[kind]

    def run(self, function: Any, timeout: float = 300, **arguments: Any) -> Any:
        return self.ray_hosts.run_driver(
            "h1", function, timeout=timeout, variables=self.variables, store=self.variables, **arguments
        )


def connect(store: dict[str, str]) -> None:
    """Runs of this driver use the cluster, and their workers find the bucket."""
    paceline.init(engine="ray", address="auto", runtime_env={"env_vars": store})


def make_bucket() -> None:
    """As soon as the server answers."""
    import s3fs

    deadline = time.monotonic() + 60
    while True:
        try:
            filesystem = s3fs.S3FileSystem(skip_instance_cache=True, config_kwargs={"retries": {"max_attempts": 0}})
            if not filesystem.exists("bucket"):
                filesystem.mkdir("bucket")
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
