"""An archive for a GPU machine without a network: made here, run by a Python that has no packing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mainspring.compiler.artifact.manifest import WeightTensor
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.bundle import contents, packing, runner
from mainspring.experiments.gpu_check.bundle.contents import BundleError
from mainspring.experiments.gpu_check.bundle.packing import HERE
from mainspring.experiments.gpu_check.settings import Settings, rehearsal

ROOT = Path(__file__).resolve().parents[3]
CHECKS = "device,compile,outputs,load,cluster,large"
TENSORS = (
    WeightTensor("drawn", "float32", (2_000,), 0, 0),
    WeightTensor("small", "float32", (3,), 0, 8_000),
    WeightTensor("whole", "int64", (2,), 0, 8_064),
)
BUNDLE = contents.Bundle(
    archs=("sm_80", "sm_90"),
    oldest_ptx="sm_80",
    main="digits",
    smallest="digits",
    architectures=("digits",),
    batch_sizes={"digits": (1, 2)},
    large_shape=(8, 8),
    weights_bytes=0,
    made="",
)


def make(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mainspring.experiments.gpu_check.bundle", "--model", "digits"]
    command += [
        "--sizes",
        "1,2",
        "--large-rows",
        "512",
        "--preset",
        "0",
        "--python",
        HERE,
        "--arch",
        "sm_80",
        "--arch",
        "sm_90",
    ]
    command += ["--work", str(folder / "work"), "--output", str(folder / "gpu_check.pyz")]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("nvcc") is None:
        pytest.importorskip("nvidia.cuda_nvrtc")
    folder = tmp_path_factory.mktemp("bundle")
    done = make(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MiB" in done.stdout
    return folder / "gpu_check.pyz"


def carry_out(python: Path, archive: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    unset = {"PYTHONPATH", "MAINSPRING_LIBCUDA"}
    variables = {name: value for name, value in os.environ.items() if name not in unset}
    command = [str(python), "-I", str(archive), *options]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**variables, "TMPDIR": str(temporary)},
    )
    assert not list(temporary.glob("gpu-check-*")), "the unpacked files are removed"
    return done


@pytest.mark.timeout(1_800)
def test_an_archive_is_rehearsed_by_a_python_without_packages(archive: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    done = carry_out(python, archive, tmp_path, "--rehearse", "--only", CHECKS)
    assert done.returncode == 0, done.stdout + done.stderr
    results = tmp_path / "gpu-check"
    assert f"Results go to {results}" in done.stdout
    lines = [json.loads(line) for line in (results / "verdicts.jsonl").read_text().splitlines()]
    assert list(dict.fromkeys(line["check"] for line in lines)) == CHECKS.split(",")
    drawn = next(line["verdict"] for line in lines if line["check"] == "compile")
    assert (drawn["found"][:8], drawn["note"]) == ("4 models", "kernels for sm_90")
    compared = [line["verdict"]["what"].strip() for line in lines if line["check"] == "outputs"]
    assert compared[:3] == [f"{name}, engine tvm" for name in ("digits", "digits-tf32", "digits-fp16")]
    without = carry_out(python, archive, tmp_path)
    assert without.returncode == runner.NOTHING_CHECKED
    assert "gpu-check can't run" in without.stdout


@pytest.mark.timeout(1_800)
def test_the_monitor_of_gpus_is_carried_if_it_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert packing.monitor_files(tmp_path) == {}
    (tmp_path / "any").mkdir()
    wheel = tmp_path / "any" / f"nvidia_ml_py-{packing.MONITOR_VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("pynvml.py", "# NVML")
        made.writestr("example.pyi", "")
        made.mkdir("folder")
    assert packing.monitor_files(tmp_path) == {"pynvml.py": b"# NVML"}


def test_a_bundle_has_the_main_model_in_other_precisions(tmp_path: Path) -> None:
    rounded = msgspec.structs.replace(BUNDLE, main="resnet50", precisions=("fp16",))
    rounded = msgspec.structs.replace(rounded, batch_sizes={"digits": (1,), "resnet50": (1, 16)})
    found = contents.with_bundle(Settings(), tmp_path, rounded, "sm_90")
    assert (found.main, found.rounded) == ("resnet50", ("resnet50-fp16",))
    rehearsed = contents.with_bundle(rehearsal(tmp_path), tmp_path, rounded, "sm_90")
    assert (rehearsed.main, rehearsed.rounded) == ("digits", ())


def test_weights_are_drawn_alike_everywhere() -> None:
    random = np.random.default_rng(0)
    image = np.zeros(8_080, np.uint8)
    image[:8_000].view(np.float32)[:] = random.normal(3, 2, 2_000)
    image[8_000:8_012] = 7
    image[8_064:].view(np.int64)[:] = 5, -1
    draws, raw = contents.draws_of(TENSORS, image)
    assert [bool(draw.raw_bytes) for draw in draws] == [False, True, True]
    drawn = contents.draw_image(TENSORS, draws, raw, len(image))
    assert bytes(drawn[8_000:]) == bytes(image[8_000:])
    numbers = drawn[:8_000].view(np.float32)
    assert abs(numbers.mean() - 3) < 0.2
    assert abs(numbers.std() - 2) < 0.2
    fixed = contents.draw_image(TENSORS[:1], [contents.Draw(seed=1, scale=0.25, mean=0.5)], b"", 8_000)
    assert hashlib.sha256(fixed.tobytes()).hexdigest()[:16] == FIXED
    with pytest.raises(BundleError, match="lacks bytes of a tensor"):
        contents.draw_image(TENSORS, draws, raw[:-1], len(image))


def test_halves_are_rounded_from_the_numbers_of_the_exact_model() -> None:
    """Their places differ, so names tell which tensor is which; small ones come rounded as they were."""
    exact = [
        WeightTensor("w0", "float32", (2_000,), 0, 0),
        WeightTensor("w1", "float32", (3,), 0, 8_000),
    ]
    short = [WeightTensor("w1", "float16", (3,), 0, 0), WeightTensor("w0", "float16", (2_000,), 0, 64)]
    image, rounded = np.zeros(8_012, np.uint8), np.zeros(4_064, np.uint8)
    image[:8_000].view(np.float32)[:] = np.random.default_rng(0).normal(3, 2, 2_000)
    image[8_000:].view(np.float32)[:] = 1, 2, 3
    rounded[:6].view(np.float16)[:] = 1, 2, 3
    draws, raw = contents.draws_of(exact, image)
    drawn = contents.draw_image(exact, draws, raw, len(image))
    named = dict(zip(("w0", "w1"), draws, strict=True))
    found = contents.draw_image(short, *contents.draws_like(short, rounded, named), len(rounded))
    assert bytes(found[:6]) == bytes(rounded[:6])
    expected = drawn[:8_000].view(np.float32).astype(np.float16)
    np.testing.assert_array_equal(found[64:].view(np.float16), expected)


FIXED = "dd0b4f109d870b2f"
"""SHA-256 of numbers as every machine has to draw them."""


@pytest.mark.parametrize(
    ("arch", "chosen"), [("sm_80", "sm_80"), ("sm_86", "sm_80"), ("sm_90", "sm_90"), ("sm_120", "sm_90")]
)
def test_kernels_are_chosen_by_the_device(arch: str, chosen: str) -> None:
    assert contents.suitable(BUNDLE, arch) == chosen


def test_an_older_device_gets_one_sentence() -> None:
    with pytest.raises(BundleError, match="this GPU is sm_75, and the bundle has machine code for sm_80"):
        contents.suitable(BUNDLE, "sm_75")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """An archive of a few bytes for this Python."""
    path = tmp_path / "gpu_check.pyz"
    facts = {"carried": "", "pythons": [HERE], "weights_bytes": 0}
    packing.pack({"own/a.py": b"a" * 5_000, "own/b.py": b"a" * 5_000}, facts, path)
    return path


def test_no_archive_is_larger_than_it_may_be(tiny: Path) -> None:
    before = hashlib.sha256(tiny.read_bytes()).hexdigest()
    files = {f"site/{HERE}/numpy/core.so": np.random.default_rng(0).bytes(1_200_000), "own/a.py": b"a"}
    with pytest.raises(BundleError, match=r"take 1\.1 MiB, more than 1: numpy about 1\.1 MiB, a\.py about"):
        packing.pack(files, {}, tiny, 1 << 20)
    assert hashlib.sha256(tiny.read_bytes()).hexdigest() == before, "the last one stays"
    assert list(tiny.parent.iterdir()) == [tiny], "nothing unfinished stays"


@pytest.mark.parametrize("damage", ["short", "changed", "without an index"])
def test_a_damaged_archive_gets_one_sentence(
    tiny: Path, damage: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    content = bytearray(tiny.read_bytes())
    if damage == "short":
        tiny.write_bytes(content[:-200])
    elif damage == "changed":
        place = content.index(b"\xfd7zXZ") + 30
        content[place] ^= 255
        tiny.write_bytes(content)
    else:
        with zipfile.ZipFile(tiny, "w") as archive:
            archive.writestr("__main__.py", "")
    assert runner.main(str(tiny), []) == runner.NOTHING_CHECKED
    said = capsys.readouterr().err
    assert said.startswith("gpu-check can't run: the archive is damaged or incomplete (")
    assert said.count("\n") == 1


def test_what_can_not_be_begun_gets_one_sentence(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = shutil.disk_usage("/")._replace(free=1)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: free)
        assert runner.main(str(tiny), []) == runner.NOTHING_CHECKED
    assert "choose another folder with TMPDIR=FOLDER" in capsys.readouterr().err
    for version, wanted in ((3, 10), "CPython 3.11 or newer is needed"), ((3, 99), "packages for Python"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "version_info", (*version, 0))
            assert runner.main(str(tiny), []) == runner.NOTHING_CHECKED
        assert wanted in capsys.readouterr().err


def test_equal_files_are_stored_once(tiny: Path) -> None:
    with zipfile.ZipFile(tiny) as archive:
        index = runner.read_index(archive)
    assert [(blob["bytes"], blob["paths"]) for blob in index["blobs"]] == [(5_000, ["own/a.py", "own/b.py"])]


def test_other_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not say how weights"):
        contents.read_draws(tmp_path, "digits")
    with pytest.raises(BundleError, match="holds no bundle"):
        contents.read_bundle(tmp_path)
    assert contents.store_path(tmp_path, "sm_90") == Store(tmp_path / "stores/sm_90").root
