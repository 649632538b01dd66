from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import fields

from mainspring.cli.configuration.config import TABLES, Config, is_key, read_config, read_tables
from mainspring.cli.documents.sample import field_docstrings, sample_toml

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
MOST_KEYS = 158
MOST_OPTIONS = 170


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
        if is_key(table, field.name) and not field_docstrings(struct).get(field.name)
    ]
    assert not missing, f"no docstring below the field: {missing}"


def test_an_operator_chooses_among_few_keys_and_options() -> None:
    """Whoever adds one finds another that nobody needs, or raises the number in a commit that says why."""
    keys = sum(is_key(table, field.name) for table, struct in TABLES.items() for field in fields(struct))
    declared = sum(path.read_text().count("typer.Option(") for path in (ROOT / "cli").rglob("*.py"))
    assert (keys <= MOST_KEYS, declared <= MOST_OPTIONS) == (True, True), (keys, declared)
