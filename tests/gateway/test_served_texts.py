"""Texts in, embeddings out, through a whole cluster: a tokenizer, an encoder and a graph of both."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, save
from typer.testing import CliRunner

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.main import build_app
from mainspring.compiler.zoo.catalogue import python_models
from mainspring.worker.config import MIB

WIDTH, MOST = 8, 64
TEXTS = ["a", "as long as this", "b" * 40, "as short a one", "Grüße", "c" * 64]
needs_tokenizers = pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None, reason="a Python model of the zoo needs tokenizers"
)
pytestmark = needs_tokenizers


def encoder(path: Path) -> None:
    """A vector for each of 256 tokens, and nothing between them."""
    table = np.random.default_rng(1).normal(size=(256, WIDTH)).astype(np.float32)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", "tokens"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    nodes = [
        helper.make_node("Add", ["input_ids", "token_type_ids"], ["ids"]),
        helper.make_node("Gather", ["table", "ids"], ["looked_up"]),
        helper.make_node("Tanh", ["looked_up"], ["last_hidden_state"]),
    ]
    hidden = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["rows", "tokens", WIDTH])
    graph = helper.make_graph(nodes, "net", inputs, [hidden], [numpy_helper.from_array(table, "table")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    save(model, str(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("texts")
    encoder(made / "encoder.onnx")
    tokenizer = python_models()["tokenize-text"] / "tokenizer.json"
    given = [str(made / "encoder.onnx"), str(tokenizer), "--name", "small", "--tokens", str(MOST)]
    places = ["--graphs", str(made / "graphs"), "--store", str(made / "store")]
    found = CliRunner().invoke(build_app(), ["embeddings", *given, *places])
    assert found.exit_code == 0, found.output
    return made


@pytest.fixture(scope="module")
def base(folder: Path) -> Iterator[str]:
    gateway, controller, http = free_ports(3)
    config = read_config(
        {
            "cluster": {
                **{key: str(folder / name) for key, name in (("store", "store"), ("graphs", "graphs"))},
                **{"run_dir": str(folder / "run"), "workers": 1, "ready_timeout_s": 120},
            },
            "worker": {"pages": 4, "io_bytes": 16 * MIB, "realtime": False},
            "gateway": {
                "address": f"tcp://127.0.0.1:{gateway}",
                "http_address": f"http://127.0.0.1:{http}",
            },
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the test",
    )
    with LocalCluster(make_plan(config), lambda _: None):
        yield f"http://127.0.0.1:{http}"


def expected(folder: Path, text: str) -> NDArray[np.float32]:
    """The mean of a text's vectors, of the length 1, by the encoder's own file."""
    session = onnxruntime.InferenceSession(folder / "encoder.onnx")
    # The zoo's tokenizer has the order of GPT-2's bytes.
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(python_models()["tokenize-text"] / "tokenizer.json"))
    ids = np.array([tokenizer.encode(text).ids[:MOST]])
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    (hidden,) = session.run(None, given)
    mean = np.asarray(hidden)[0].mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean), np.float32)


def ask(base: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """Return the status, the body and the headers of a reply."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{base}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply), reply.headers
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), error.headers


def test_texts_of_unlike_length_get_the_vectors_that_each_has_alone(base: str, folder: Path) -> None:
    status, found, _ = ask(base, "/v1/embeddings", {"model": "small", "input": TEXTS, "user": None})
    assert (status, found["model"]) == (200, "small")
    assert found["usage"]["prompt_tokens"] == sum(len(text.encode()) for text in TEXTS)
    for each, text in zip(found["data"], TEXTS, strict=True):
        np.testing.assert_allclose(each["embedding"], expected(folder, text), atol=1e-6)


def test_tokens_get_the_vectors_of_their_text(base: str, folder: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(python_models()["tokenize-text"] / "tokenizer.json"))
    tokens = [tokenizer.encode(text).ids for text in TEXTS]
    status, found, _ = ask(base, "/v1/embeddings", {"model": "small", "input": tokens})
    assert (status, found["usage"]["total_tokens"]) == (200, sum(map(len, tokens)))
    for each, text in zip(found["data"], TEXTS, strict=True):
        np.testing.assert_allclose(each["embedding"], expected(folder, text), atol=1e-6)


def test_overlong_texts_are_refused_or_cut(base: str, folder: Path) -> None:
    long = "d" * (MOST + 6)
    for given in (long, [1] * len(long)):
        status, found, _ = ask(base, "/v1/embeddings", {"model": "small", "input": given})
        assert (status, found["error"]["type"]) == (400, "invalid_request_error")
        assert f"input[0] has {len(long)} tokens, and the model takes {MOST}" in found["error"]["message"]
    status, found, _ = ask(base, "/v1/embeddings", {"model": "small", "input": long, "truncate": True})
    assert (status, found["usage"]["prompt_tokens"]) == (200, MOST)
    np.testing.assert_allclose(found["data"][0]["embedding"], expected(folder, long), atol=1e-6)


def test_what_embeds_is_listed(base: str) -> None:
    assert [each["id"] for each in ask(base, "/v1/models")[1]["data"]] == ["small"]
    assert ask(base, "/v1/models/small")[1]["object"] == "model"


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        ({"model": "other", "input": "a"}, {}, 404, "model_not_found"),
        ({"model": "small-encoder", "input": "a"}, {}, 404, "model_not_found"),
        ({"model": "small", "input": ""}, {}, 400, "bad_input"),
        ({"model": "small", "input": "a", "dimensions": WIDTH + 1}, {}, 400, "bad_input"),
        ({"model": "small", "input": "a", "timeout": 1e-6}, {}, 504, None),
        ({"model": "small", "input": "a"}, {"x-mainspring-slo-ms": "0.001"}, 504, None),
        ({"model": "small", "input": "a"}, {"x-stainless-read-timeout": "0.000001"}, 504, None),
    ],
)
def test_refusals_have_the_form_of_openai(
    base: str, body: Any, headers: dict[str, str], status: int, code: str | None
) -> None:
    found_status, found, found_headers = ask(base, "/v1/embeddings", body, **headers)
    assert found_status == status
    assert found["error"]["code"] == (code or found["error"]["code"])
    assert (found_headers["retry-after"] is not None) == (status == 504)


def test_nothing_reranks_here(base: str) -> None:
    status, found, _ = ask(base, "/rerank", {"query": "a", "texts": ["b"]})
    assert (status, found["error"]) == (404, "unknown_model: no model that is served reranks")


def test_the_client_of_openai_reads_every_answer(base: str, folder: Path) -> None:
    if packages := os.environ.get("OPENAI_PACKAGES"):
        sys.path.append(packages)
    if importlib.util.find_spec("openai") is None:
        pytest.skip("openai is not installed: `make openai` installs it and runs this")
    import openai

    os.environ.setdefault("OPENAI_API_KEY", "none")
    with openai.OpenAI(base_url=f"{base}/v1", max_retries=0) as client:
        assert [each.id for each in client.models.list()] == [client.models.retrieve("small").id] == ["small"]
        for form in ("float", "base64"):
            found = client.embeddings.create(model="small", input=TEXTS, encoding_format=form)
            for each, text in zip(found.data, TEXTS, strict=True):
                vector: Any = each.embedding
                if isinstance(vector, str):
                    # Asked for by name, it is given as it came.
                    vector = np.frombuffer(base64.b64decode(vector), "<f4")
                np.testing.assert_allclose(vector, expected(folder, text), atol=1e-6)
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="other", input="a")
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model="small", input="a", dimensions=0)
        with pytest.raises(openai.InternalServerError, match=r"deadline|timed_out"):
            client.embeddings.create(model="small", input="a", extra_headers={"x-mainspring-slo-ms": "0.001"})
