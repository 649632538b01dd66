"""``mainspring embeddings``: an encoder of texts and its tokenizer become models, and a graph of both."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring.cli.options import DEFAULT_STORE, ModelStore

GRAPH = """\
# Texts in, embeddings out: docs/embeddings.md
name = "{name}"
serves = "embeddings"
inputs = ["text"]

[[steps]]
name = "tokenize"
model = "{name}-tokenizer"
inputs = {{ text = "text" }}

[[steps]]
name = "encode"
model = "{name}-encoder"
inputs = {{ input_ids = "tokenize.input_ids", attention_mask = "tokenize.attention_mask" }}
length = "tokenize.count"

[outputs]
embedding = "encode.{output}"
tokens = "tokenize.count"
"""


def embeddings(
    encoder: Annotated[Path, typer.Argument(help="The encoder, an ONNX file with open lengths.")],
    tokenizer: Annotated[Path, typer.Argument(help="Its tokenizer.json.")],
    name: Annotated[str, typer.Option(help="Name that clients ask for.")],
    pooling: Annotated[str, typer.Option(help="What of the tokens' vectors: mean, cls or last.")] = "mean",
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a text.")] = 256,
    graphs: Annotated[Path, typer.Option(help="Folder for the graph's file.")] = Path("graphs"),
    store: ModelStore = DEFAULT_STORE,
) -> None:
    """Compile an encoder and its tokenizer, and write the graph that serves embeddings by them."""
    import tempfile
    import tomllib

    import onnx

    from mainspring.compiler.artifact.store import Store
    from mainspring.compiler.conversion import encoder as encoding
    from mainspring.compiler.pipeline import compile_file
    from mainspring.compiler.python_models.compiling import compile_folder
    from mainspring.compiler.reading.model_file import read_model
    from mainspring.compiler.zoo.catalogue import python_models
    from mainspring.messages.choices import one_of
    from mainspring.planner.writing import toml

    if pooling not in encoding.POOLINGS:
        raise typer.BadParameter(
            f"--pooling can't be {pooling!r}; it is one of {one_of(pooling, encoding.POOLINGS)}"
        )
    model, _ = read_model(encoder)
    length = encoding.pool(model, pooling)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as made:
        file, folder = Path(made, "encoder.onnx"), Path(made, "tokenizer")
        onnx.save(model, str(file))
        print(f"compiling {name}-encoder ...")
        pad = {encoding.IDS: 0.0, encoding.MASK: 0.0}
        compile_file(file, f"{name}-encoder", Store(store), (1, 2, 4), most={length: tokens}, pad=pad)
        folder.mkdir()
        source = python_models()["tokenize-text"]
        (folder / "model.py").write_text((source / "model.py").read_text())
        described = tomllib.loads((source / "model.toml").read_text())
        _cut(described, (encoding.IDS, encoding.MASK), tokens)
        (folder / "model.toml").write_text(toml(described))
        (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
        print(f"compiling {name}-tokenizer ...")
        compile_folder(folder, f"{name}-tokenizer", Store(store))
    graphs.mkdir(parents=True, exist_ok=True)
    path = graphs / f"{name}.toml"
    path.write_text(GRAPH.format(name=name, output=encoding.OUTPUT))
    print(f"wrote {path}; serve it: mainspring up --store {store} --graphs {graphs}")


def _cut(described: dict[str, Any], outputs: tuple[str, ...], tokens: int) -> None:
    """Have these outputs of a tokenizer's description end after a number of tokens."""
    for each in described["outputs"]:
        if each["name"] in outputs:
            each["shape"] = [tokens]
