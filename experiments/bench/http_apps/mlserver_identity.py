"""MLServer with an identity model: ``python mlserver_identity.py FOLDER PORT GRPC_PORT METRICS_PORT``, with
its settings in FOLDER."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

mlserver: Any = importlib.import_module("mlserver")
types: Any = importlib.import_module("mlserver.types")


class Identity(mlserver.MLModel):  # type: ignore[misc]
    """Returns what it is given."""

    async def load(self) -> bool:
        """Prepare nothing."""
        return True

    async def predict(self, payload: Any) -> Any:
        """Return the input as the output."""
        x = payload.inputs[0]
        output = types.ResponseOutput(name="y", shape=x.shape, datatype=x.datatype, data=x.data)
        return types.InferenceResponse(model_name=self.name, outputs=[output])


def start(folder: Path, port: int, grpc_port: int, metrics_port: int) -> None:
    """Replace this process by the server; without worker processes, which makes it quicker for this model."""
    settings = {"host": "127.0.0.1", "http_port": port, "grpc_port": grpc_port}
    settings |= {"metrics_port": metrics_port}
    settings |= {"debug": False, "parallel_workers": 0, "use_structured_logging": False}
    model = {"name": "identity", "implementation": f"{Path(__file__).stem}.Identity"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(model))
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    program = str(Path(sys.executable).parent / "mlserver")
    os.execv(program, [program, "start", str(folder)])


if __name__ == "__main__":
    start(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
