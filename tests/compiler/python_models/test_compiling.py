"""A folder becomes an artifact, or one sentence says why not."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.manifest import PYTHON
from mainspring.compiler.artifact.python_folder import interpreter, unpacked
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.python_models import environment
from mainspring.compiler.python_models.compiling import compile_folder
from tests.python_models import HEAD, TENSORS, folder

PRINTS = 'print("before it ends")\n'


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_an_artifact_without_weights(tmp_path: Path, store: Store) -> None:
    made = folder(tmp_path / "double")
    (made / "__pycache__").mkdir()
    (made / "__pycache__" / "model.pyc").write_bytes(b"stale")
    compiled = compile_folder(made, "double", store).manifest
    assert store.manifest("double") == compiled
    store.verify("double")
    assert (compiled.engine, compiled.target, compiled.weights_bytes, compiled.pages) == (
        PYTHON,
        "python-any",
        0,
        0,
    )
    spec = compiled.spec()
    assert (spec.batch_sizes, spec.unshared, spec.whole, spec.verified) == ((1, 2, 4), "", False, True)
    assert {*spec.profiles["cpu"].infer_ns} == {1, 2, 4}
    held = unpacked(store, compiled)
    assert {each.name for each in held.iterdir()} == {"facts.json", "model.py", "model.toml"}
    again = compile_folder(made, "double", store).manifest
    other = compile_folder(made, "other", store).manifest
    assert again.executable == compiled.executable
    assert other.executable != compiled.executable, "models have no process in common"


def test_a_sample_is_kept_and_rows_of_their_own_number(tmp_path: Path, store: Store) -> None:
    head = 'rows = "own"\n[most]\nn = 40\n'
    tensors = TENSORS.replace("[3]", '["n", 3]', 1).replace("[3]", '["<=7", 3]')
    sample = 'def sample(self):\n    return {"x": np.ones((2, 3), "float32")}'
    body = 'if not inputs["x"].all(): raise ValueError("zeros")\nreturn {"y": inputs["x"][:1]}'
    made = compile_folder(folder(tmp_path / "own", body, head, tensors, sample), "own", store).manifest
    assert made.whole
    assert [each.ceilings for each in made.symbols] == [(16, 32, 40)]
    assert made.outputs[0].varies == (0,)
    (row,) = store.executable_info(made).sample
    np.testing.assert_array_equal(np.frombuffer(row.data, np.float32).reshape(row.shape), np.ones((1, 2, 3)))
    assert {*made.profiles["cpu"].shaped} == {"16", "32", "40"}


def test_rows_that_depend_on_one_another_run_alone(tmp_path: Path, store: Store) -> None:
    head = 'rows = "dependent"\n'
    made = compile_folder(folder(tmp_path / "m", head=head), "m", store).manifest
    assert made.spec().unshared == 'its model.toml says rows = "dependent"'


FAULTS = {
    "import": (
        "import nowhere_at_all",
        "failed while it started: ModuleNotFoundError.*requirements.txt brings it",
    ),
    "syntax": ("x = (", r"failed while it started: SyntaxError.*\(model.py, line \d+\)"),
    "init": ("def __init__(self, folder):\n    raise OSError('no key')", r"OSError: no key \(model.py, line"),
    "missing file": (
        "def __init__(self, folder):\n    open(folder + '/weights.bin')",
        "FileNotFoundError.*weights.bin",
    ),
    "init loops": (
        "def __init__(self, folder):\n    while True: pass",
        "was not ready after 0.5 s; `start_s`",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_at_the_start_is_said_in_one_sentence(fault: str, tmp_path: Path, store: Store) -> None:
    before, said = FAULTS[fault]
    head = HEAD.replace("300", "0.5") if fault == "init loops" else HEAD
    with pytest.raises(CompileError, match=said) as caught:
        compile_folder(folder(tmp_path / "m", before=before, head=head), "m", store)
    assert "\n" not in str(caught.value)
    with pytest.raises(StoreError, match="holds no model"):
        store.manifest("m")


PREDICTS = {
    'return {"y": inputs["x"].astype("float64")}': "the output 'y' is float64; model.toml says float32",
    'return {"y": inputs["x"][:, :2]}': r"the output 'y' is of shape \[1, 2\]; model.toml says \[1, 3\]",
    'return {"y": inputs["x"][:0]}': "the output 'y' has 0 rows for a batch of 1",
    'return {"z": inputs["x"]}': "returns the outputs z, and not 'y'",
    'return {"y": inputs["x"], "z": 1}': "returns the output 'z', which model.toml does not name",
    "return inputs['x']": "as ndarray; it has to be a dict of arrays by name",
    "return {'y': inputs['w']}": r"KeyError: 'w' \(model.py, line",
    "inputs['x'][:] = 0": "read-only",
    "raise ValueError('no zeros')": r"refuses zeros: no zeros .*give Predictor a method sample\(\)",
    "os._exit(7)": "was ended while it ran a batch of 1 with exit code 7: model.py may not end it",
    "sys.exit(2)": "with exit code 2",
    "os.abort()": "by SIGABRT: native code in it failed",
    "while True: pass": "was not done after 0.5 s while it ran a batch of 1, and was ended: `timeout_ms`",
    "np.ones(1 << 30)": "needs more memory than the 256 MiB that `memory_mb` in model.toml allows",
    f"{PRINTS}os._exit(1)": "the last line that it wrote: 'before it ends'",
    "return {'y': inputs['x'] + len(inputs['x'])}": 'row 0 in a batch of 4 differs .*say rows = "dependent"',
}


@pytest.mark.parametrize("predict", PREDICTS)
def test_what_fails_in_a_run_is_said_in_one_sentence(predict: str, tmp_path: Path, store: Store) -> None:
    head = HEAD + "timeout_ms = 500\n"
    with pytest.raises(CompileError, match=PREDICTS[predict]) as caught:
        compile_folder(folder(tmp_path / "m", predict, head), "m", store)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.py", "model.toml"])
def test_both_files_are_needed(name: str, tmp_path: Path, store: Store) -> None:
    made = folder(tmp_path / "m")
    (made / name).unlink()
    with pytest.raises(CompileError, match=f"has no {name}: a Python model is a folder with"):
        compile_folder(made, "m", store)


def test_a_class_predictor_is_needed(tmp_path: Path, store: Store) -> None:
    made = folder(tmp_path / "m")
    code = (made / "model.py").read_text()
    (made / "model.py").write_text(code.replace("class Predictor", "class TritonPythonModel"))
    with pytest.raises(CompileError, match=r"has no class Predictor; it has .*TritonPythonModel"):
        compile_folder(made, "m", store)


def test_what_is_unpacked_is_mended(tmp_path: Path, store: Store) -> None:
    manifest = compile_folder(folder(tmp_path / "m"), "m", store).manifest
    held = unpacked(store, manifest)
    code = (held / "model.py").read_text()
    (held / "model.py").write_text(code.replace("* 2", "* 3"))
    assert (unpacked(store, manifest) / "model.py").read_text() == code
    shutil.rmtree(held)
    assert (unpacked(store, manifest) / "model.py").read_text() == code
    assert {each.name for each in held.parent.iterdir()} == {manifest.executable}


def test_a_python_that_exists(tmp_path: Path, store: Store) -> None:
    made = folder(tmp_path / "m")
    compiled = compile_folder(made, "m", store, sys.executable).manifest
    info = store.executable_info(compiled)
    assert info.python is not None
    assert interpreter(store, info.python) == Path(sys.executable)
    assert f"--python {sys.executable}" in compiled.source.options
    with pytest.raises(CompileError, match="--python /nowhere/python is no program"):
        compile_folder(made, "m", store, "/nowhere/python")
    with pytest.raises(CompileError, match=r"--python .*false can't run a model"):
        compile_folder(made, "m", store, "false")


def test_requirements_are_installed_once_and_their_environment_goes_with_the_last_model(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = folder(tmp_path / "m")
    (made / "requirements.txt").write_text("one-package\n")
    installed = []

    def run(command: list[str], timeout_s: float) -> object:
        # In the place of pip, which would need an index: the environment is this Python's.
        if "pip" in command:
            installed.append(command[-1])
            command = ["true"]
        elif "venv" in command:
            Path(command[-1], "bin").mkdir(parents=True)
            Path(command[-1], "bin", "python").symlink_to(sys.executable)
            command = ["true"]
        return real(command, timeout_s)

    real = environment._run
    monkeypatch.setattr(environment, "_run", run)
    first = compile_folder(made, "m", store).manifest
    compile_folder(made, "n", store)
    assert installed == [str(made / "requirements.txt")]
    info = store.executable_info(first)
    assert info.python is not None
    assert info.python.python.startswith("environments/")
    assert interpreter(store, info.python) == store.root / info.python.python
    (kept,) = (store.root / "environments").iterdir()
    store.remove("m")
    store.collect()
    assert kept.exists()
    store.remove("n")
    store.collect()
    assert not kept.exists()
    assert not [*(store.root / "python").iterdir()]
    with pytest.raises(StoreError, match="is not on this host: workers install nothing"):
        interpreter(store, info.python)


def test_what_can_not_be_installed_is_said(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = folder(tmp_path / "m")
    (made / "requirements.txt").write_text("one-package\n")
    program = "import sys; print('ERROR: No matching distribution', file=sys.stderr); sys.exit(1)"
    real = environment._run
    monkeypatch.setattr(
        environment,
        "_run",
        lambda command, timeout_s: real(
            [sys.executable, "-c", program]
            if "pip" in command
            else ["true"]
            if "venv" in command
            else command,
            timeout_s,
        ),
    )
    with pytest.raises(CompileError, match=r"requirements.txt can't be installed: ERROR: No matching"):
        compile_folder(made, "m", store)
