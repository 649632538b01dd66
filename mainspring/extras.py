"""The packages beside the client's that a part of Mainspring needs, and the command that installs them here.

The extras are those of ``pyproject.toml``. The command names the place that this installation came from, or
else the packages themselves: never ``mainspring[...]``, a name that an index may give to somebody else's
project. This file imports nothing of ours, so everything may import it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from importlib.metadata import Distribution

PROJECT = "mainspring"
ORIGIN = "direct_url.json"
"""File of the metadata with the place that an installation came from, if that was not an index."""
MODULES = {
    "serve": (
        "google", "grpc", "httptools", "matplotlib", "msgpack", "mypy", "mypy_extensions", "mypyc",
        "onnx", "onnxruntime", "prometheus_client", "psutil", "rich", "setuptools", "starlette", "typer",
        "uvicorn", "uvloop", "websockets",
    ),
    "gpu": ("cuda", "cupy", "pynvml"),
    "tvm": ("tvm", "tvm_ffi"),
    "convert": ("joblib", "onnxscript", "skl2onnx", "sklearn", "skops"),
    "python-zoo": ("PIL", "tokenizers"),
    "parquet": ("pyarrow",),
    "planner": ("numba",),
    "linear": ("scipy", "threadpoolctl"),
    "cluster": ("ray",),
    "tracing": ("opentelemetry",),
    "remote": ("fsspec",),
    "secure": ("cryptography",),
    "ha": ("etcd3gw",),
}
"""Top-level modules that the distributions of each extra bring."""

_EXTRA = re.compile(r"""\bextra\s*==\s*["']([\w.-]+)["']""")


def command(extra: str) -> str:
    """Return the command that installs an extra into this environment, to be typed as it is."""
    return command_for(extra, _installed(), Path(sys.prefix))


def extra_of(module: str) -> str | None:
    """Return the extra that brings a module, None for a module of no extra."""
    top = module.partition(".")[0]
    return next((extra for extra, modules in MODULES.items() if top in modules), None)


def compile_command() -> str:
    """Return the command that compiles the cores of this installation, to be typed as it is."""
    checkout = Path(__file__).absolute().parent.parent
    if not (checkout / "setup.py").is_file():
        origin = _origin(_installed(), "serve") or ["its source"]
        return f"{installer(Path(sys.prefix))} --force-reinstall --no-deps {shlex.join(origin)}"
    if Path(sys.prefix) == checkout / ".venv":
        return "make native" if Path.cwd() == checkout else f"make -C {shlex.quote(str(checkout))} native"
    return f"{_python(Path(sys.prefix))} {shlex.quote(str(checkout / 'setup.py'))} native"


def missing_compiler() -> list[str]:
    """Return what compiling needs of the system and does not find, each with how to get it."""
    missing = []
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        missing.append(f"the C compiler {compiler!r} (apt-get install gcc, or set CC)")
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.is_file():
        missing.append(f"{header} (apt-get install python3-dev)")
    return missing


def missing(error: BaseException) -> str:
    """Return what to say of an import that failed for want of an extra; nothing of any other error."""
    module = error.name if isinstance(error, ModuleNotFoundError) else None
    extra = extra_of(module or "")
    if extra is None:
        return ""
    return f"this needs the Python module {module}, which is not installed here: {command(extra)}"


def command_for(extra: str, installed: Distribution | None, prefix: Path) -> str:
    """See `command`, for an installation in an environment; None is a package that was never installed."""
    wanted = _origin(installed, extra) or _packages(installed, extra)
    if not wanted:
        return f"its packages are those of the extra {extra} in pyproject.toml"
    return " ".join([installer(prefix), *map(shlex.quote, wanted)])


@cache
def _installed() -> Distribution | None:
    """Return the installation, of several the one that knows where it came from: a checkout holds one too."""
    # It takes a tenth of a process's start, and only who lacks something asks.
    from importlib.metadata import distributions

    found = list(distributions(name=PROJECT))
    return next((each for each in found if each.read_text(ORIGIN)), found[0] if found else None)


def _origin(installed: Distribution | None, extra: str) -> list[str]:
    """Return what to give pip for this project with an extra; nothing if where it came from is not known."""
    said: Mapping[str, Any] = json.loads((installed and installed.read_text(ORIGIN)) or "{}")
    url = str(said.get("url", ""))
    path = Path(unquote(urlsplit(url).path))
    if url.startswith("file:") and path.exists():
        editable = said.get("dir_info", {}).get("editable")
        return [*(["-e"] if editable else []), f"{path}[{extra}]"]
    if "vcs_info" in said:
        url = f"{said['vcs_info']['vcs']}+{url}@{said['vcs_info']['commit_id']}"
    if url and not url.startswith("file:"):
        return [f"{PROJECT}[{extra}] @ {url}"]
    checkout = Path(__file__).absolute().parent.parent
    return ["-e", f"{checkout}[{extra}]"] if (checkout / "pyproject.toml").is_file() else []


def _packages(installed: Distribution | None, extra: str) -> list[str]:
    """Return the requirements of an extra, as the installation's metadata has them."""
    requirements = (installed.requires if installed else None) or []
    return [
        requirement.partition(";")[0].replace(" ", "")
        for requirement in requirements
        if extra in _EXTRA.findall(requirement)
    ]


def installer(prefix: Path) -> str:
    """Return the command that installs into an environment, whether or not it is the one in the PATH."""
    if find_spec("pip") is None and shutil.which("uv"):
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    return "pip install" if _in_path("pip", prefix) else f"{_python(prefix)} -m pip install"


def _python(prefix: Path) -> str:
    """Return what runs the Python of an environment."""
    return "python" if _in_path("python", prefix) else shlex.quote(sys.executable)


def _in_path(program: str, prefix: Path) -> bool:
    """Return whether a program's bare name runs the one of an environment."""
    found = shutil.which(program)
    return found is not None and Path(found).parent == prefix / "bin"
