from pathlib import Path

import pytest

from mainspring.cli.configuration.config import read_config, read_tables
from mainspring.messages.tables import ConfigError


def scheduler_of(text: str, folder: Path) -> dict[str, int]:
    path = folder / "mainspring.toml"
    path.write_text(text)
    return read_config(read_tables(path), str(path)).scheduler.max_queue_sizes


def test_each_model_has_a_bound_of_its_own(tmp_path: Path) -> None:
    text = '[models.a]\nmax_queue_size = 3\n[models."b.c"]\nmax_queue_size = 70\n'
    assert scheduler_of(text, tmp_path) == {"a": 3, "b.c": 70}


def test_each_model_has_a_weight_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mainspring.toml"
    path.write_text("[models.giant]\ngoodput_weight = 20\n[models.b]\nmax_queue_size = 7\n")
    scheduler = read_config(read_tables(path), str(path)).scheduler
    assert (scheduler.goodput_weights, scheduler.max_queue_sizes) == ({"giant": 20.0}, {"b": 7})


def test_each_model_has_a_bound_of_rows_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mainspring.toml"
    path.write_text("[models.wide]\nmax_rows_per_request = 9000\n")
    assert read_config(read_tables(path), str(path)).gateway.model_max_rows == {"wide": 9000}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[models.a]\nmax_rows_per_request = 0\n", "it must be at least 1"),
        ("[models.a]\ngoodput_weight = 0\n", "give 0.001 to 1,000"),
        ("[models.a]\nmax_queue_size = 0\n", "it must be at least 1"),
        ("[models.a]\nmax_queue_sizes = 3\n", "max_queue_size"),
        ("[models.a]\nmax_queue_size = 'three'\n", "max_queue_size"),
        ("models = 3\n", "write .models.NAME"),
        ("[models]\na = 3\n", "write .models.NAME"),
    ],
)
def test_what_can_not_be_names_the_model_and_the_key(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        scheduler_of(text, tmp_path)


def test_a_model_has_workers_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mainspring.toml"
    path.write_text('[models.a]\nworkers = 3\nmax_batch = 4\ndevice_kind = "cpu"\n[models.b]\nworkers = 1\n')
    found = read_config(read_tables(path), str(path)).scheduler.own_workers
    assert found == {"a": (3, 4, "cpu"), "b": (1, 0, "")}
    path.write_text("[models.a]\nmax_batch = 4\n")
    with pytest.raises(ConfigError, match="say how many with workers"):
        read_config(read_tables(path), str(path))
