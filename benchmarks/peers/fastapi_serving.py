"""A model behind plain FastAPI: each request is predicted by itself, in its handler.

Argument: the folder of the XGBoost model. Writes its address to the file `ready` and serves until SIGTERM. The handler
is `async`, which is quicker for a model that takes a tenth of a millisecond than a thread for each request would be.
"""

from __future__ import annotations

import json
import socket
import sys

import numpy as np
import uvicorn
import xgboost
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks import workload
from benchmarks.tree_workload import FEATURES


class Rows(BaseModel):
    rows: list[dict[str, float]]


def application(model_file: str) -> FastAPI:
    model = xgboost.Booster(model_file=model_file)
    model.set_param({"nthread": 1})  # quicker than two for one row
    app = FastAPI()

    async def predict(body: Rows) -> dict[str, list[float]]:
        matrix = np.array([[row[name] for name in FEATURES] for row in body.rows], dtype=np.float32)
        return {"predictions": model.inplace_predict(matrix).tolist()}

    app.add_api_route("/predict", predict, methods=["POST"])
    return app


def main(folder: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    config = uvicorn.Config(
        application(f"{folder}/model.ubj"), loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )
    (workload.place() / "ready.part").write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "token": ""}))
    (workload.place() / "ready.part").rename(workload.place() / "ready")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1])
