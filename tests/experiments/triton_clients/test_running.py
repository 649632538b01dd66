"""Programs of a folder against a cluster that serves what they ask for, as Triton's example clients do."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from mainspring.experiments.triton_clients.__main__ import main

HTTP = """
import argparse

import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

parser = argparse.ArgumentParser()
parser.add_argument("-u", "--url")
client = http.InferenceServerClient(parser.parse_args().url)


def tensor(name, values):
    made = http.InferInput(name, values.shape, "INT32" if values.dtype == np.int32 else "BYTES")
    made.set_data_from_numpy(values, binary_data=False)
    return made


def begins(text, ask, *given, **more):
    try:
        ask(*given, **more)
    except InferenceServerException as error:
        assert error.message().startswith(text), error.message()
    else:
        raise AssertionError(f"{text} is not said")


count, ones = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
pair = [tensor("INPUT0", count), tensor("INPUT1", ones)]
answer = client.infer("simple", pair, outputs=[http.InferRequestedOutput("OUTPUT0", class_count=2)])
assert answer.as_numpy("OUTPUT0").tolist() == [[b"16:15:label15", b"15:14:label14"]]

texts = [np.array([[str(each) for each in values[0]]], dtype=object) for values in (count, ones)]
answer = client.infer("simple_string", [tensor(f"INPUT{at}", each) for at, each in enumerate(texts)])
assert [int(each) for each in answer.as_numpy("OUTPUT1")[0]] == list(range(-1, 15))
wanted = [http.InferRequestedOutput("OUTPUT0", class_count=1)]
begins("class result not available", client.infer, "simple_string", [
    tensor(f"INPUT{at}", each) for at, each in enumerate(texts)
], outputs=wanted)

for place, value in enumerate((20, 7, 5)):
    given = [tensor("INPUT", np.full((1, 1), value, np.int32))]
    answer = client.infer(
        "simple_sequence", given, sequence_id="a", sequence_start=not place, sequence_end=place == 2
    )
    assert answer.as_numpy("OUTPUT")[0][0] == value + (not place)

assert client.get_server_metadata()["name"] == "triton"
begins("Request for unknown model", client.infer, "no-such-model", pair)
begins("failed to load 'simple', ", client.load_model, "simple", config='"no JSON"')
client.load_model("simple", config='{"max_batch_size": "16"}')
assert client.get_model_config("simple")["max_batch_size"] == 16
client.unload_model("simple")
assert not client.is_model_ready("simple")
client.unload_model("simple")
begins("failed to load 'no-such-model', failed to poll", client.load_model, "no-such-model")
print("PASS: all")
"""


COUNTED = """
import sys

import tritonclient.{0} as triton

client = triton.InferenceServerClient(sys.argv[2])
assert {1}
print("PASS")
"""


def test_each_file_is_run_as_it_is_and_those_that_need_what_is_not_here_are_left_out(tmp_path: Path) -> None:
    for name, text in (
        ("some_http_client.py", HTTP),
        (
            "a_grpc_model_control.py",
            COUNTED.format("grpc", "len(client.get_model_repository_index().models) == 8"),
        ),
        ("a_http_model_control.py", COUNTED.format("http", "len(client.get_model_repository_index()) == 7")),
        ("some_grpc_client.py", "import sys\nprint(sys.argv[2])\nsys.exit(1)\n"),
        ("simple_http_cudashm_client.py", "raise SystemExit(1)"),
    ):
        (tmp_path / name).write_text(text)
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(app, [str(tmp_path)])
    lines = done.stdout.splitlines()[-5:]
    assert lines[0].startswith("FAIL  some_grpc_client.py  127.0.0.1:"), done.output
    assert lines[1] == "pass  some_http_client.py  PASS: all"
    assert lines[2:4] == ["pass  a_http_model_control.py  PASS", "pass  a_grpc_model_control.py  PASS"]
    assert (lines[4], done.exit_code) == ("3 of 4 pass", 1)
