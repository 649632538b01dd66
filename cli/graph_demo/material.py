"""The models of the demonstration's graphs: out of a package of PyPI, trained here, and Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

from mainspring import extras
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.conversion.opening import as_onnx
from mainspring.compiler.pipeline import Compiled, compile_file
from mainspring.compiler.python_models.compiling import compile_folder
from mainspring.messages.model import ModelSpec

HERE: Final = Path(__file__).resolve().parent
GRAPHS: Final = HERE / "graphs"
PACKAGE: Final = "rapidocr-onnxruntime==1.4.4"
DIGEST: Final = "sha256:971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"
DETECTOR: Final = "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"
RECOGNISER: Final = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
FETCH_S: Final = 600.0
TREES: Final = 400
"""Trees of the large model of the cascade."""
CHARACTERS: Final = "characters.txt"


class Digits(NamedTuple):
    """Handwritten digits of scikit-learn's."""

    images: npt.NDArray[np.float32]
    """[digits, 64], from 0 to 16."""
    labels: npt.NDArray[np.int64]


def digits(*, held_out: bool) -> Digits:
    """Return the half that the cascade's models are trained on, or the half that they have not seen."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    halves = train_test_split(
        images.astype(np.float32), labels, test_size=0.5, random_state=0, stratify=labels
    )
    return Digits(halves[held_out], halves[2 + held_out])


def make_models(folder: Path, packages: Path, say: Callable[[str], None]) -> dict[str, ModelSpec]:
    """Compile into the store in ``folder`` what it does not hold yet; return the specs by model's name.

    ``packages`` is the folder that keeps what was fetched from PyPI; ``say`` gets a line for each model.
    Raises `CompileError` or `StoreError`, the first also if a package is missing or can't be fetched.
    """
    _check_packages()
    store = Store(folder)
    held = store.names() if folder.is_dir() else []
    makers: dict[str, Callable[[Path], Compiled]] = {
        "open-page": lambda _: compile_folder(HERE / "models/open-page", "open-page", store),
        "detect-text": lambda work: _from_package(
            store, "detect-text", packages, work, DETECTOR, (192, 320), (1, 2, 4)
        ),
        "find-lines": lambda _: compile_folder(HERE / "models/find-lines", "find-lines", store),
        "recognise-line": lambda work: _from_package(
            store, "recognise-line", packages, work, RECOGNISER, (48, 320), (1, 2, 4, 8)
        ),
        "spell": lambda work: _speller(store, packages, work),
        "digits-fast": lambda work: _trained(store, "digits-fast", work),
        "digits-slow": lambda work: _trained(store, "digits-slow", work),
    }
    for name, make in makers.items():
        if name in held:
            say(f"{name:16} kept")
            continue
        with TemporaryDirectory(prefix="mainspring-") as work:
            profile = make(Path(work)).manifest.spec().profiles["cpu"]
        say(f"{name:16} {profile.infer_ns[1] / 1e6:.1f} ms for one row")
    return {name: store.manifest(name).spec() for name in makers}


def _check_packages() -> None:
    try:
        import PIL
        import skl2onnx
        import sklearn
    except ImportError as error:
        raise CompileError(
            f"the demonstration of graphs needs {error.name}: `{extras.command('convert')}` and "
            f"`{extras.command('python-zoo')}`"
        ) from None
    del PIL, sklearn, skl2onnx


def _from_package(
    store: Store,
    name: str,
    packages: Path,
    work: Path,
    file: str,
    size: tuple[int, int],
    batch_sizes: tuple[int, ...],
) -> Compiled:
    path = _extracted(packages, work, file)
    return compile_file(path, name, store, batch_sizes, {"x": (1, 3, *size)})


def _speller(store: Store, packages: Path, work: Path) -> Compiled:
    """Compile the speller with the characters that the recogniser's file says."""
    facts = onnx.load(str(_extracted(packages, work, RECOGNISER)), load_external_data=False).metadata_props
    folder = work / "spell"
    shutil.copytree(HERE / "models/spell", folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = next(each.value for each in facts if each.key == "character")
    (folder / CHARACTERS).write_text(text, encoding="utf-8")
    return compile_folder(folder, "spell", store)


def _extracted(packages: Path, work: Path, file: str) -> Path:
    """Return an ONNX file of the package's wheel, fetched if it is not there; nothing of it is run."""
    packages.mkdir(parents=True, exist_ok=True)
    wheels = list(packages.glob("rapidocr_onnxruntime-1.4.4-*.whl"))
    if not wheels:
        wanted = work / "wanted.txt"
        wanted.write_text(f"{PACKAGE} --hash={DIGEST}\n", encoding="utf-8")
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        fetched = subprocess.run(
            [*pip, "--require-hashes", "--dest", str(packages), "-r", str(wanted)],
            capture_output=True, text=True, timeout=FETCH_S, check=False,
        )  # fmt: skip
        wheels = list(packages.glob("rapidocr_onnxruntime-1.4.4-*.whl"))
        if fetched.returncode or not wheels:
            said = fetched.stderr.strip().splitlines() or ["pip said nothing"]
            raise CompileError(f"{PACKAGE} can't be fetched from PyPI: {said[-1]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(file, work))


def _trained(store: Store, name: str, work: Path) -> Compiled:
    """Train a model of digits, and compile it as what users save with joblib."""
    import joblib
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    seen = digits(held_out=False)
    kinds = {
        "digits-fast": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        "digits-slow": lambda: RandomForestClassifier(TREES, random_state=0),
    }
    path = work / f"{name}.joblib"
    joblib.dump(kinds[name]().fit(seen.images, seen.labels), path)
    with as_onnx(path, trust=True) as converted:
        return compile_file(converted.path, name, store, most=converted.most, origin=converted.origin)
