"""The page's files, and how browsers keep them."""

from __future__ import annotations

import gzip
import os
import tomllib
from glob import glob
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from mainspring.console.server import FOLDER, Files
from tests.console.web.asgi import get


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    page = tmp_path / "page"
    (page / "views").mkdir(parents=True)
    (page / "index.html").write_text("<!doctype html><title>Mainspring</title>" + "x" * 1_000)
    (page / "views" / "cluster.js").write_text("export const x = 1;\n")
    (page / ".hidden").write_text("no")
    (tmp_path / "secret.txt").write_text("no")
    (page / "link.txt").symlink_to(tmp_path / "secret.txt")
    return page


@pytest.fixture
def app(folder: Path) -> Starlette:
    return Starlette(routes=[Route("/{path:path}", Files(folder).serve)])


def test_the_root_is_the_page(app: Starlette) -> None:
    answer = get(app, "/")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.body.startswith(b"<!doctype html>")
    assert answer.headers["cache-control"] == "no-cache"


def test_modules_have_the_type_that_browsers_run(app: Starlette) -> None:
    answer = get(app, "/views/cluster.js")
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"


def test_what_a_browser_has_is_not_sent_again(app: Starlette) -> None:
    tag = get(app, "/").headers["etag"]
    for known in (tag, f'"other", {tag}', tag.removeprefix("W/")):
        again = get(app, "/", {"if-none-match": known})
        assert (again.status, again.body) == (304, b"")
        assert again.headers["etag"] == tag
    assert get(app, "/", {"if-none-match": '"other"'}).status == 200


def test_a_newer_file_is_sent(app: Starlette, folder: Path) -> None:
    tag = get(app, "/").headers["etag"]
    (folder / "index.html").write_text("<!doctype html>newer")
    newer = get(app, "/", {"if-none-match": tag})
    assert (newer.status, newer.body) == (200, b"<!doctype html>newer")
    # Two states of one length, written within one tick of the clock but for its time, differ by that.
    (folder / "index.html").write_text("<!doctype html>NEWER")
    os.utime(folder / "index.html", ns=(1, 1))
    assert get(app, "/").body == b"<!doctype html>NEWER"


def test_files_are_sent_compressed_to_who_takes_that(app: Starlette) -> None:
    plain = get(app, "/")
    squeezed = get(app, "/", {"accept-encoding": "br, gzip;q=0.5"})
    assert squeezed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(squeezed.body) == plain.body
    assert len(squeezed.body) < len(plain.body)
    for none in ("", "identity", "gzip;q=0"):
        assert "content-encoding" not in get(app, "/", {"accept-encoding": none}).headers


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/../secret.txt",
            "/views/../../secret.txt",
            "/link.txt",
            "/.hidden",
            "/views",
            "/nothing.js",
            "//etc/passwd",
        ),
        *("/views/%2e%2e/%2e%2e/secret.txt", "/%00", "/..%2fsecret.txt", "/" + "x" * 5_000),
    ],
)
def test_nothing_else_is_served(app: Starlette, path: str) -> None:
    answer = get(app, path)
    assert answer.status == 404
    assert b"no\n" not in answer.body


def test_the_page_is_in_the_package() -> None:
    assert Path(__file__).resolve().parents[3] / "console" / "page" == FOLDER


def test_every_file_of_the_page_is_in_the_wheel() -> None:
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["mainspring.console"]
    packed = {path for pattern in patterns for path in glob(str(FOLDER.parent / pattern), recursive=True)}
    files = {str(path) for path in FOLDER.rglob("*") if path.is_file()}
    assert str(FOLDER / "index.html") in files
    assert files <= packed
