"""``mainspring token new``: what it prints is a token, and the file that lets it pass."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.jobs import GatewayJob
from mainspring.cli.launcher.running import with_own_token
from mainspring.cli.main import build_app
from mainspring.transport.tokens import Gate, parse_tokens


def run(*arguments: str) -> Result:
    return CliRunner().invoke(
        build_app(), ["token", "new", *arguments], env={"COLUMNS": "100", "NO_COLOR": "1"}
    )


def secret(printed: str) -> str:
    found = re.search(r"ms_[\w-]{43}", printed)
    assert found is not None
    return found[0]


def test_what_it_prints_is_the_file_and_the_token() -> None:
    printed = run('a "quoted" name', "--models", "res*", "--models", "bert", "--rate", "2.5", "--burst", "4")
    assert printed.exit_code == 0, printed.output
    [made] = parse_tokens(printed.stdout)
    assert (made.name, made.models, made.rate, made.burst, made.admin) == (
        'a "quoted" name',
        ("res*", "bert"),
        2.5,
        4,
        False,
    )
    gate = Gate([made])
    assert gate.authorise(f"Bearer {secret(printed.stdout)}", "resnet", 0) is None


def test_no_two_are_alike_and_lines_of_several_make_one_file() -> None:
    first, second = run("one"), run("two", "--admin")
    assert secret(first.stdout) != secret(second.stdout)
    tokens = parse_tokens(first.stdout + second.stdout)
    assert [(each.models, each.rate, each.admin) for each in tokens] == [
        (("*",), None, False),
        (("*",), None, True),
    ]


def test_what_makes_no_sense_is_refused() -> None:
    printed = run("x", "--burst", "3")
    assert printed.exit_code == 2
    assert "without a rate" in printed.output


def test_a_launcher_gives_its_gateway_a_token_that_no_file_holds() -> None:
    config = read_config({"gateway": {"token_file": "tokens.toml"}}, "here")
    job = GatewayJob(name="gateway", gateway=config.gateway)
    (given,), own = with_own_token([job])
    assert isinstance(given, GatewayJob)
    assert own not in str(given)
    assert len(given.gateway.launcher_token_sha256) == 64
    open_job = GatewayJob(name="gateway", gateway=read_config({}, "here").gateway)
    assert with_own_token([open_job])[0] == (open_job,)


def test_the_file_gets_the_digest_alone_and_is_its_users(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    done = subprocess.run(
        [sys.executable, "-m", "mainspring", "token", "new", "search", "--output", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    secret = done.stdout.split("# ")[-1].strip()
    assert secret.startswith("ms_")
    assert secret not in path.read_text()
    assert 'name = "search"' in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
