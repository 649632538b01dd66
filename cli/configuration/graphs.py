"""The folder of graphs of models: one file ``NAME.toml`` for each."""

from __future__ import annotations

from pathlib import Path

from mainspring.messages.graphs import MOST_BYTES, GraphSpec, graph_fault, read_graph
from mainspring.messages.tables import ConfigError


def read_file(path: Path) -> GraphSpec:
    """Return the graph that a file describes; raise `ConfigError` that names the file and what is wrong."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from None
    graph = read_graph(text, str(path))
    fault = graph_fault(graph)
    if fault is None and path.stem != graph.name:
        fault = f"the graph's name is {graph.name!r}; it has to be the file's, {path.stem!r}"
    if fault is not None:
        raise ConfigError(f"{path}: {fault}")
    return graph


def read_folder(folder: str) -> tuple[GraphSpec, ...]:
    """Return the graphs of a folder's ``*.toml`` files, by name; none if ``folder`` is empty.

    Raises `ConfigError`, which names the file.
    """
    if not folder:
        return ()
    if not Path(folder).is_dir():
        raise ConfigError(f"{folder} is not a folder with graphs, NAME.toml")
    return tuple([read_file(path) for path in sorted(Path(folder).glob("*.toml"))])
