"""LitServe with an identity model: ``python litserve_identity.py FOLDER PORT``."""

from __future__ import annotations

import importlib
import sys
from typing import Any

litserve: Any = importlib.import_module("litserve")


class Identity(litserve.LitAPI):  # type: ignore[misc]
    """Returns what it is given."""

    def setup(self, device: str) -> None:
        """Prepare nothing."""

    def decode_request(self, request):  # type: ignore[no-untyped-def]
        """Return the input. Without a type: LitServe would have FastAPI read the body by it."""
        return request["input"]

    def predict(self, x: Any) -> Any:
        """Return it."""
        return x

    def encode_response(self, output: Any) -> dict[str, Any]:
        """Return it as the reply."""
        return {"output": output}


if __name__ == "__main__":
    server = litserve.LitServer(Identity(), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="warning")
