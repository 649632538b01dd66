"""The documentation of the protocol against the protocol."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from mainspring import Client
from mainspring.cli.documents.protocol import messages_page
from tests.gateway.fakes import fake_cluster, gateway, wait_until

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_tables_are_up_to_date() -> None:
    written = (DOCS / "messages.md").read_text()
    assert written == messages_page(), "python -m mainspring.cli.documents.protocol > docs/messages.md"


def test_the_documented_client_works() -> None:
    found = re.search(r"```python\n(.*?)```", (DOCS / "protocol.md").read_text(), re.DOTALL)
    assert found is not None
    with fake_cluster() as cluster, gateway(cluster.address) as address:
        with Client(address) as client:
            wait_until(lambda: len(client.models()) == len(cluster.specs))
        done = subprocess.run(
            [sys.executable, "-c", found[1], address, "double"],
            check=False,
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert done.returncode == 0, done.stderr
    assert "twice [[2.0, 2.0, 2.0, 2.0], [2.0, 2.0, 2.0, 2.0]]" in done.stdout
