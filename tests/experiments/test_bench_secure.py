"""The benchmark of TLS between processes: that it runs, over connections of ours and over bare ones."""

from __future__ import annotations

import json
from pathlib import Path

from mainspring.experiments.bench.secure import main


def test_a_short_run_measures_the_path_and_large_messages(tmp_path: Path) -> None:
    main(requests=20, messages=3, rounds=1, output=tmp_path)
    figures = {
        each["name"]: each["value"] for each in json.loads((tmp_path / "secure.json").read_text())["figures"]
    }
    assert figures["4 KB: path over TLS, median"] > 0
    for way in ("ours", "bare socket", "bare, TLS in memory"):
        assert figures[f"602 KB, {way}: TLS / clear"] > 0
