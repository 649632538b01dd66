"""Ten estimators of scikit-learn, exported by skl2onnx with its default options.

Both packages live in an environment of their own, below ``out/wild``: the project needs neither.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mainspring.experiments.wild.files import WildFile

SKL = "skl-"
"""What the models' names begin with."""
NAMES = (
    *("logistic-regression", "random-forest", "svc", "mlp", "k-neighbours", "k-means"),
    *("isolation-forest", "scaler-and-boosting", "string-labels", "text"),
)
PACKAGES = ("skl2onnx==1.20.0", "scikit-learn==1.7.2", "onnx==1.19.1")
INSTALL_S = 900.0
EXPORT = Path(__file__).resolve().parent / "export_estimators.py"
"""A program for that environment; it imports nothing of ours."""


def estimators(cache: Path) -> list[WildFile]:
    """Return the exported files, made unless they are in ``cache``; raise OSError if they can't be had."""
    folder = cache / "skl2onnx"
    if not (folder / "done").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        environment = cache / "venv"
        _run([sys.executable, "-m", "venv", str(environment)])
        python = str(environment / "bin" / "python")
        _run([python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *PACKAGES])
        _run([python, str(EXPORT), str(folder)])
        (folder / "done").touch()
    return [
        WildFile(f"{SKL}{name}", PACKAGES[0].replace("==", " "), folder / f"{name}.onnx") for name in NAMES
    ]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"{' '.join(command)} took longer than {INSTALL_S:g} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise OSError(f"{' '.join(command)} failed: {said[-1]}")
