"""The repository's process: what it does with a compilation whose model is gone."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from tests.cli.launcher.test_repository import Site, serves, wait_for
from tests.python_models import folder as python_model
from tests.repository.nets import put


def test_what_is_removed_while_it_is_compiled_keeps_no_other_waiting(tmp_path: Path) -> None:
    site = Site(tmp_path)
    begins = tmp_path / "begins"
    waits = f"def __init__(self, folder):\n    open({str(begins)!r}, 'w').close()\n    time.sleep(299)"
    put(site.path, "first", 1, 2.0)
    with site.cluster() as (_, client):
        # Not before: a cluster waits for what it finds at the start.
        python_model(site.path / "long" / "1", before=waits)
        wait_for(begins.exists, "its compilation")
        shutil.rmtree(site.path / "long")
        put(site.path, "next", 1, 3.0)
        wait_for(lambda: serves(client, 3.0, "next"), "the model behind it")
        assert not site.index().keys() & {"long"}


def shows(site: Site, name: str) -> bool:
    return name in site.index()


def test_what_waits_to_be_compiled_says_so_and_behind_how_many(tmp_path: Path) -> None:
    site = Site(tmp_path)
    begins, goes = tmp_path / "begins", tmp_path / "goes"
    waits = (
        f"def __init__(self, folder):\n    import pathlib\n    open({str(begins)!r}, 'w').close()\n"
        f"    while not pathlib.Path({str(goes)!r}).exists(): time.sleep(0.01)"
    )
    put(site.path, "first", 1, 2.0)
    with site.cluster() as (_, client):
        python_model(site.path / "a-long" / "1", before=waits)
        wait_for(begins.exists, "its compilation")
        for name in ("b", "c", "d"):
            put(site.path, name, 1, 3.0)
            wait_for(partial(shows, site, name), f"the look at {name}")

        def reasons() -> list[str]:
            return [site.index()[name].reason for name in ("a-long", "b", "c", "d")]

        waits_behind = "it waits to be compiled, behind {}".format
        expected = ["it is being compiled", *map(waits_behind, ("1 other", "2 others", "3 others"))]
        wait_for(lambda: reasons() == expected, f"{expected}")
        said = f"waits to be compiled: version 1: {waits_behind('2 others')}"
        wait_for(lambda: client.status().unready.get("c") == said, said)
        goes.touch()
        wait_for(lambda: serves(client, 3.0, "d"), "the last")
        assert not any(reasons()[1:])
