from __future__ import annotations

from pathlib import Path

import msgspec

from mainspring.cli.configuration.config import DERIVED, TABLES, Config, read_config, read_tables
from mainspring.cli.documents.sample import field_docstrings, sample_toml

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_documented_file_is_up_to_date() -> None:
    written = (DOCS / "mainspring.toml").read_text()
    assert written == sample_toml(), "python -m mainspring.cli.documents.sample > docs/mainspring.toml"


def test_the_documented_file_is_the_defaults() -> None:
    path = DOCS / "mainspring.toml"
    config = read_config(read_tables(path), str(path))
    default = Config()
    cluster = msgspec.structs.replace(config.cluster, run_dir=default.cluster.run_dir)
    assert msgspec.structs.replace(config, cluster=cluster) == default


def test_every_key_says_what_it_means() -> None:
    missing = [
        f"[{table}] {field.name}"
        for table, struct in TABLES.items()
        for field in msgspec.structs.fields(struct)
        if (table, field.name) not in DERIVED and not field_docstrings(struct).get(field.name)
    ]
    assert not missing, f"no docstring below the field: {missing}"
