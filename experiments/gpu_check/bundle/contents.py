"""The files of an unpacked bundle, as they are written here and read on the GPU machine.

``bundle.json`` is a `Bundle`; ``stores/ARCH`` are model stores without weights; ``draws/MODEL.json`` and
``.raw`` say how to draw those; ``outputs/MODEL-SIZE-INDEX.npy`` are what a batch has to give whose inputs are
drawn from the batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.compiler.artifact.manifest import WeightTensor
from mainspring.compiler.artifact.plan import arch_number
from mainspring.experiments.gpu_check.outputs import Array, Batch
from mainspring.experiments.gpu_check.settings import STORES, TVM, Settings
from mainspring.messages.model import ModelSpec
from mainspring.worker.engines.cuda.compiling import runs_code

DESCRIPTION = "bundle.json"
_RAW_BYTES = 4096
"""A tensor of at most as many bytes, or not of 32-bit floats, comes as it is: little is saved by a seed, and
integers and small vectors may mean something."""
_MIDDLE, _HALF_RANGE = 32767.5, 32768.0


class BundleError(Exception):
    """A bundle that can't be used on this device, or is damaged."""


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a bundle."""

    archs: tuple[str, ...]
    """Architectures that there is machine code for, ascending; there is PTX for the last."""
    oldest_ptx: str
    """The oldest device that PTX is for, such as ``sm_80``."""
    main: str
    smallest: str
    """The model of a rehearsal."""
    architectures: tuple[str, ...]
    batch_sizes: dict[str, tuple[int, ...]]
    precisions: tuple[str, ...] = ()
    large_shape: tuple[int, int]
    weights_bytes: int
    made: str


class Draw(msgspec.Struct, frozen=True, omit_defaults=True):
    """Origin of a tensor's elements."""

    seed: int = 0
    scale: float = 0.0
    """Standard deviation of 32-bit floats."""
    mean: float = 0.0
    raw_bytes: int = 0


def read_bundle(folder: Path) -> Bundle:
    """Return a bundle's description; raise `BundleError` if it can't be read."""
    try:
        return msgspec.json.decode((folder / DESCRIPTION).read_bytes(), type=Bundle)
    except (OSError, msgspec.MsgspecError) as error:
        raise BundleError(f"{folder} holds no bundle that this version can read: {error}") from error


def suitable(bundle: Bundle, arch: str) -> str:
    """Return which of the bundle's architectures a device can run; raise `BundleError` if none."""
    fitting = [each for each in bundle.archs if runs_code(each, arch)]
    if fitting:
        return fitting[-1]
    if arch_number(arch) < arch_number(bundle.oldest_ptx):
        raise BundleError(
            f"this GPU is {arch}, and the bundle has machine code for {', '.join(bundle.archs)} and PTX for "
            f"{bundle.oldest_ptx} and newer: make one elsewhere with `make gpu-bundle "
            f'ARGS="--arch {arch}"`'
        )
    return bundle.archs[-1]


def with_bundle(settings: Settings, folder: Path, bundle: Bundle, arch: str) -> Settings:
    """Return settings that check a bundle's models with the kernels for one of its architectures."""
    main = bundle.smallest if settings.rehearsed else bundle.main
    architectures = (main,) if settings.rehearsed else bundle.architectures
    return msgspec.structs.replace(
        settings,
        bundle=str(folder),
        arch=arch,
        engines=(TVM,),
        precisions=bundle.precisions if main == bundle.main else (),
        architectures=architectures,
        main=main,
        batch_sizes=bundle.batch_sizes[main],
        steady=(main,) if settings.rehearsed else settings.steady,
        large_shape=bundle.large_shape,
    )


def draws_of(tensors: Sequence[WeightTensor], image: npt.NDArray[np.uint8]) -> tuple[list[Draw], bytes]:
    """Return how to draw tensors like those of a weights file, and the bytes of those that come whole."""
    draws, raw = [], []
    for index, tensor in enumerate(tensors):
        content = image[tensor.offset : tensor.offset + tensor.size_bytes]
        if tensor.dtype == "float32" and tensor.size_bytes > _RAW_BYTES:
            numbers = content.view(np.float32)
            mean, scale = float(numbers.mean(dtype=np.float64)), float(numbers.std(dtype=np.float64))
            draws.append(Draw(seed=index + 1, scale=scale, mean=mean))
        else:
            raw.append(content.tobytes())
            draws.append(Draw(raw_bytes=tensor.size_bytes))
    return draws, b"".join(raw)


def draws_like(
    tensors: Sequence[WeightTensor], image: npt.NDArray[np.uint8], exact: dict[str, Draw]
) -> tuple[list[Draw], bytes]:
    """Return how to draw a model's tensors as those of another precision, which ``exact`` has by name.

    What is drawn as FP16 is rounded from the same numbers; ``image`` has the tensors that come whole.
    """
    draws, raw = [], []
    for tensor in tensors:
        draw = exact[tensor.name]
        if draw.raw_bytes:
            raw.append(image[tensor.offset : tensor.offset + tensor.size_bytes].tobytes())
            draw = Draw(raw_bytes=tensor.size_bytes)
        draws.append(draw)
    return draws, b"".join(raw)


def draw_image(
    tensors: Sequence[WeightTensor], draws: Sequence[Draw], raw: bytes, total_bytes: int
) -> npt.NDArray[np.uint8]:
    """Return the bytes of a weights file, the same on every machine; raise `BundleError` if bytes lack."""
    image = np.zeros(total_bytes, np.uint8)
    begin = 0
    for tensor, draw in zip(tensors, draws, strict=True):
        place = image[tensor.offset : tensor.offset + tensor.size_bytes]
        if tensor.size_bytes == draw.raw_bytes:
            content = np.frombuffer(raw[begin : begin + draw.raw_bytes], np.uint8)
            if content.size != draw.raw_bytes:
                raise BundleError("the bundle lacks bytes of a tensor: make and copy it again")
            place[:] = content
            begin += draw.raw_bytes
        elif tensor.dtype == "float16":
            numbers = np.empty(tensor.size_bytes // 2, np.float32)
            _fill(numbers, draw)
            place.view(np.float16)[:] = numbers
        else:
            _fill(place.view(np.float32), draw)
    return image


def _fill(numbers: npt.NDArray[np.float32], draw: Draw) -> None:
    """Draw evenly spread numbers.

    Bits of the Mersenne Twister and two operations that IEEE 754 rounds alike everywhere: neither numpy's
    version nor the mathematical library matters.
    """
    bits = np.random.RandomState(draw.seed).bytes(2 * numbers.size)
    numbers[:] = np.frombuffer(bits, "<u2")
    numbers -= np.float32(_MIDDLE)
    numbers *= np.float32(draw.scale * 3**0.5 / _HALF_RANGE)
    numbers += np.float32(draw.mean)


def draw_rows(spec: ModelSpec, size: int) -> list[Array]:
    """Return a batch of inputs: spread around 0 with a deviation of 1, and integers that are 0 or 1."""
    rows: list[Array] = []
    for index, tensor in enumerate(spec.inputs):
        shape = (size, *tensor.shape)
        numbers = np.empty(int(np.prod(shape)), np.float32)
        _fill(numbers, Draw(seed=1000 * size + index, scale=1.0))
        whole = np.dtype(tensor.dtype).kind != "f"
        rows.append((numbers > 0 if whole else numbers).astype(tensor.dtype).reshape(shape))
    return rows


def write_batch(folder: Path, spec: ModelSpec, size: int, outputs: Sequence[Array]) -> None:
    """Keep what a batch's outputs have to be."""
    for index, array in enumerate(outputs):
        path = _output_path(folder, spec, size, index)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array, allow_pickle=False)


def read_batch(folder: Path, spec: ModelSpec, size: int) -> Batch:
    """Return a batch and what its outputs have to be; raise `BundleError` if they are not there."""
    try:
        outputs = [
            np.load(_output_path(folder, spec, size, index), allow_pickle=False)
            for index in range(len(spec.outputs))
        ]
    except (OSError, ValueError) as error:
        raise BundleError(f"the bundle lacks outputs of {spec.name} at batch size {size}: {error}") from error
    return Batch(draw_rows(spec, size), outputs)


def write_draws(folder: Path, name: str, draws: Sequence[Draw], raw: bytes) -> None:
    """Keep how a model's weights are drawn."""
    path = folder / "draws" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(draws))
    path.with_suffix(".raw").write_bytes(raw)


def read_draws(folder: Path, name: str) -> tuple[list[Draw], bytes]:
    """Return what `write_draws` kept; raise `BundleError` if it is not there."""
    path = folder / "draws" / f"{name}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Draw]), path.with_suffix(".raw").read_bytes()
    except (OSError, msgspec.MsgspecError) as error:
        raise BundleError(f"the bundle does not say how weights of {name} are drawn: {error}") from error


def store_path(folder: Path, arch: str) -> Path:
    """Return the folder of the store with kernels for an architecture."""
    return folder / STORES / arch


def _output_path(folder: Path, spec: ModelSpec, size: int, index: int) -> Path:
    return folder / "outputs" / f"{spec.name}-{size}-{index}.npy"
