"""A real MLflow server, and what it says over HTTP."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections import defaultdict
from typing import Any

from benchmarks.mlflow_server import MLflowServer
from paceline.testing.tracker_contract import ReadRow, ReadRun
from paceline.trackers.tracker import ATTEMPT_KEY
from tests.trackers.readers import MLFLOW_OUTCOMES


class ReadableServer(MLflowServer):
    """A server of the environment that runs the tests."""

    def ask(self, path: str, **query: Any) -> Any:
        """One call of MLflow's REST API."""
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/{path}",
            data=json.dumps(query).encode() if "search" in path else None,
            headers={"Content-Type": "application/json"},
        )
        if "search" not in path:
            request.full_url += "?" + urllib.parse.urlencode(query)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def runs(self, experiment: str) -> list[ReadRun]:
        """What the server has of an experiment; values that came twice are counted as rows of their own."""
        found = self.ask("experiments/get-by-name", experiment_name=experiment)["experiment"]["experiment_id"]
        runs = self.ask("runs/search", experiment_ids=[found], order_by=["attributes.start_time ASC"])
        return [self._run(run) for run in runs.get("runs", [])]

    def _run(self, run: dict[str, Any]) -> ReadRun:
        points: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
        copies = 0
        for metric in run["data"].get("metrics", []):
            for point in self._history(run["info"]["run_id"], metric["key"]):
                values = points[int(point["timestamp"]), int(point.get("step", 0))]
                copies += metric["key"] in values
                values[metric["key"]] = float(point["value"])
        assert copies == 0, f"{copies} values came twice"
        rows = [ReadRow(int(values[ATTEMPT_KEY]), step, values) for (_, step), values in sorted(points.items())]
        params = {param["key"]: param.get("value", "") for param in run["data"].get("params", [])}
        return ReadRun(run["info"]["run_name"], rows, params, MLFLOW_OUTCOMES.get(run["info"]["status"]))

    def _history(self, run_id: str, key: str) -> list[dict[str, Any]]:
        points: list[dict[str, Any]] = []
        token = None
        while token is None or token:
            page = {"page_token": token} if token else {}
            answer = self.ask("metrics/get-history", run_id=run_id, metric_key=key, max_results=25000, **page)
            points += answer.get("metrics", [])
            token = answer.get("next_page_token", "")
        return points
