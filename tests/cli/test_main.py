from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from mainspring.cli import main as cli
from mainspring.cli.main import VERBS, build_app, describe
from mainspring.client.address import ADDRESS_VARIABLE
from mainspring.client.connection import TOKEN_VARIABLE
from mainspring.messages.tables import ConfigError

HEAVY = ("onnx", "onnxruntime", "matplotlib", "psutil", "rich.live")


def mainspring(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        check=False,
    )


def test_help_lists_every_verb_with_a_sentence() -> None:
    result = CliRunner().invoke(build_app(), ["--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == 0
    for verb in VERBS:
        assert f" {verb} " in result.output


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str) -> None:
    assert CliRunner().invoke(build_app(), [verb, "--help"]).exit_code == 0


def test_every_command_file_is_a_verb() -> None:
    folder = Path(__file__).resolve().parents[2] / "cli" / "verbs"
    assert {path.stem for path in folder.glob("[a-z]*.py")} == set(VERBS)


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from mainspring.cli.main import build_app; build_app(); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_version() -> None:
    result = CliRunner().invoke(build_app(), ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("mainspring 0.")


def test_an_error_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    result = mainspring("up", "--store", "nowhere", folder=tmp_path)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("mainspring: nowhere is not a model store")


def test_a_wrong_flag_is_exit_code_2(tmp_path: Path) -> None:
    assert mainspring("up", "--wrokers", "2", folder=tmp_path).returncode == 2


def test_a_configuration_file_is_checked_by_up(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("[cluster]\nworker = 2\n")
    result = mainspring("up", folder=tmp_path)
    assert result.returncode == 1
    assert "mainspring.toml, [cluster] has no key 'worker'; did you mean 'workers'?" in result.stderr


def test_errors_of_ours_speak_for_themselves_and_bugs_say_so() -> None:
    assert describe(ConfigError("the key\nis wrong")) == "the key is wrong"
    assert describe(OSError("disk full")) == "disk full"
    assert describe(KeyError("x")).startswith("internal error, please report it: KeyError: 'x'")


@pytest.mark.parametrize(
    "words",
    [
        ["compile"],
        ["zoo"],
        ["demo"],
        ["doctor"],
        ["models"],
        ["models", "list"],
        ["infer"],
        ["replay"],
        ["status"],
    ],
)
def test_what_prints_a_table_prints_json_too(words: list[str]) -> None:
    result = CliRunner().invoke(build_app(), [*words, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert "--json" in result.output


def test_ctrl_c_prints_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()

    @app.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_app", lambda: app)
    monkeypatch.setattr(sys, "argv", ["mainspring"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "mainspring: interrupted\n"


@pytest.mark.parametrize("words", [*([verb] for verb in VERBS), ["models", "list"], ["log", "slice"]])
def test_help_has_room_for_its_sentences_in_80_columns(words: list[str]) -> None:
    text = CliRunner().invoke(build_app(), [*words, "--help"], env={"COLUMNS": "80", "NO_COLOR": "1"}).output
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text, "a word is cut off"
    # Where the sentence of the last option begins.
    column = next(line.index("Show this message") for line in lines if "--help" in line)
    assert 80 - column >= 28


def test_help_keeps_the_names_of_tables() -> None:
    """Of a word in brackets rich makes markup, and leaves it out if it knows none of that name."""
    for words, command in commands(typer.main.get_command(build_app())):
        names = {
            name
            for each in (command, *command.params)
            for name in re.findall(r"\[[a-z]\w*\]", each.help or "")
        }
        text = (
            CliRunner()
            .invoke(build_app(), [*words, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
            .output
        )
        assert not [name for name in names if name not in text], words


def test_only_arguments_keep_their_names() -> None:
    text = CliRunner().invoke(build_app(), ["infer", "--help"], env={"COLUMNS": "80", "NO_COLOR": "1"}).output
    assert re.search(r"--rows +N \[x>=1\]", text)
    assert re.search(r"--json +Print JSON", text)
    assert re.search(r"\* +model ", text)


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every verb and verb of a verb, with its words."""
    for name, command in group.commands.items():
        yield (*words, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))


def test_what_asks_a_cluster_takes_one_address_and_a_token() -> None:
    asking = 0
    for words, command in commands(typer.main.get_command(build_app())):
        options = {parameter.name: parameter for parameter in command.params}
        address = options.get("address")
        if address is None or address.envvar != ADDRESS_VARIABLE:
            continue
        asking += 1
        assert "token" in options, words
        assert options["token"].envvar == TOKEN_VARIABLE
    assert asking >= 10
