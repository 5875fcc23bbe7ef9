"""A model behind HTTP: predictions in JSON, a request that does not fit, and another checkpoint while it serves.

On the command line, `paceline serve <directory of the run>` does the same.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from sklearn.datasets import load_iris

from paceline import data, serve
from paceline.train import CheckpointConfig, Result, RunConfig, ScalingConfig
from paceline.train.xgboost import XGBoostPredictor, XGBoostTrainer


def fit() -> Result:
    """A model of iris flowers, with a checkpoint after rounds 5 and 10."""
    names = ["sepal_length", "sepal_width", "petal_length", "petal_width", "species"]
    frame = load_iris(as_frame=True).frame.set_axis(names, axis=1)
    return XGBoostTrainer(
        params={"objective": "multi:softprob", "num_class": 3},
        label_column="species",
        datasets={"train": data.from_pandas(frame)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="iris", checkpoint_config=CheckpointConfig(checkpoint_frequency=5)),
    ).fit()


def post(server: serve.RunningServer, path: str, document: Any) -> tuple[int, Any]:
    """What a client does: a JSON body, and the token in a header."""
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, data=json.dumps(document).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def main() -> None:
    result = fit()
    flower = {"sepal_length": 6.3, "sepal_width": 2.9, "petal_length": 5.6, "petal_width": 1.8}
    with serve.run(XGBoostPredictor, result.path, port=0, blocking=False) as server:
        status, answer = post(server, "/predict", {"rows": [flower]})
        shares = [f"{values[0]:.3f}" for values in answer.values()]
        print(f"{status}: {', '.join(shares)}")

        status, answer = post(server, "/predict", {"rows": [{"petal_length": "long"}]})
        print(f"{status}: {answer['detail']}")

        status, model = post(server, "/reload", {"checkpoint": 5})
        _, answer = post(server, "/predict", {"rows": [flower]})
        shares = [f"{values[0]:.3f}" for values in answer.values()]
        print(f"{status}: now checkpoint {model['number']}: {', '.join(shares)}")


if __name__ == "__main__":
    main()
