"""Amount of each check: on a GPU, and in a rehearsal without one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from mainspring.compiler.artifact.manifest import FP16, TF32, Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.artifact.target import Gpu
from mainspring.messages.model import ModelSpec
from mainspring.worker.config import WorkerConfig
from mainspring.worker.engines.registry import CUDA_ENGINES, ENGINES

HASHING_THREADS = 8


def beside(source: Store, root: Path, linked: Sequence[str]) -> Store:
    """Return a store in ``root`` that has some folders of another: ``executables``, ``weights`` or both."""
    store = Store(root)
    store.check_writable()
    for kind in linked:
        link = store.root / kind
        if not link.exists():
            link.symlink_to((source.root / kind).resolve(), target_is_directory=True)
    return store


def put_variants(
    store: Store, source: Store, manifest: Manifest, names: Sequence[str], different: int
) -> list[ModelSpec]:
    """Store variants of a model of ``source`` under these names; they have ``different`` weights in turn."""
    image = np.fromfile(source.weights_path(manifest), np.uint8)
    scaled = max(manifest.tensors, key=lambda tensor: tensor.size_bytes * (tensor.dtype == "float32"))

    def put(index: int) -> str:
        changed = image.copy()
        numbers = changed[scaled.offset : scaled.offset + scaled.size_bytes].view(np.float32)
        numbers *= np.float32(1 + (index + 1) / (2 * different))
        return store.put_weights([changed.data])[0]

    with ThreadPoolExecutor(HASHING_THREADS) as threads:
        hashes = list(threads.map(put, range(different)))
    specs = []
    for index, name in enumerate(names):
        made = msgspec.structs.replace(manifest, name=name, weights_hash=hashes[index % different])
        store.put_manifest(made)
        specs.append(made.spec())
    return specs


def unavailable(settings: Settings, engine: str) -> str:
    """Return why an engine can't be checked here; nothing if it can."""
    if engine not in (CUDA_ENGINES if settings.on_gpu else ENGINES):
        return f"there is no engine {engine}"
    if engine != ONNXRUNTIME:
        return ""
    try:
        import onnxruntime

        from mainspring.worker.engines.cuda.onnxruntime_program import PROVIDER
    except ImportError:
        return "ONNX Runtime is not installed here"
    providers = onnxruntime.get_available_providers()
    if settings.on_gpu and PROVIDER not in providers:
        return "ONNX Runtime has no CUDA provider here: install onnxruntime-gpu in place of onnxruntime"
    return ""


OUTPUT = Path("out/gpu-check")
TVM, ONNXRUNTIME = "tvm", "onnxruntime"
STORES = "stores"
"""The folder of a bundle with its stores."""
LARGE = "one-large-tensor"
LARGE_SIZES = (1, 4)
LENGTHS = "open-lengths"
LENGTHS_SIZES = (1, 4)


def the_zoo() -> tuple[str, ...]:
    """Return the names of all architectures of the zoo."""
    # The import takes ONNX, which a machine that only checks need not have.
    from mainspring.compiler.zoo import names

    return tuple(names())


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the checks."""

    folder: str = str(OUTPUT)
    device: str = "cuda:0"
    arch: str = ""
    engine: str = TVM
    engines: tuple[str, ...] = (TVM, ONNXRUNTIME)
    realtime: bool = True
    limit_s: float = 3600.0
    bundle: str = ""
    """Folder of an unpacked bundle, whose models are checked; empty for models that are compiled here."""
    rehearsed: bool = False

    architectures: tuple[str, ...] = msgspec.field(default_factory=the_zoo)
    compile_s: float = 150.0
    main: str = "resnet50"
    """The model of all other checks."""
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    precisions: tuple[str, ...] = (TF32, FP16)
    """The main model is compiled for these beside FP32, for its smallest and its largest batch size."""

    tune_seconds: float = 0.0
    """Bound of a search for fast tiles by timing; 0 for none."""
    gpu: Gpu | None = None
    loads: int = 50
    pinned_mib: int = 2_048
    exec_runs: int = 500
    pauses_ms: tuple[int, ...] = (1, 10, 100, 1_000, 5_000)
    torch_rounds: int = 50
    infers: int = 100_000
    infers_s: float = 90.0
    steady: tuple[str, ...] = ("resnet50", "mobilenet", "squeezenet", "resnet20")
    """The first that the time does for is run; the last if it does for none."""
    repeats: int = 20
    """Launches of a short kernel between two looks at the device's clock."""

    large_shape: tuple[int, int] = (25_088, 4_096)
    longest: int = 256
    cycled: int = 2_000
    cycled_pages: int = 1_024
    cycled_s: float = 60.0
    cycled_share: float = 0.3
    """Share of the free host memory that different weights may take; beyond, models share weights."""

    cluster_copies: int = 8
    cluster_pages: int = 64
    """Room for all of the copies."""
    cluster_load: float = 0.8
    cluster_s: float = 15.0
    cluster_slos_ms: tuple[float, ...] = (25.0, 10.0)
    many: int = 500
    """Copies of the main model, in pages for half of them."""
    many_load: float = 0.7
    many_s: float = 60.0
    many_slo_ms: float = 100.0
    opening_s: float = 20.0

    @property
    def second(self) -> str:
        """Name of the model that differs from the main one in its weights alone."""
        return f"{self.main}-like"

    @property
    def rounded(self) -> tuple[str, ...]:
        """Names of the main model in each of its other precisions."""
        return tuple(f"{self.main}-{precision}" for precision in self.precisions)

    @property
    def on_gpu(self) -> bool:
        """True if the device is a GPU."""
        return self.config().cuda_device is not None

    @property
    def few_sizes(self) -> tuple[int, ...]:
        """Batch sizes of the models that are only compared."""
        return tuple(
            dict.fromkeys((self.batch_sizes[0], self.batch_sizes[min(2, len(self.batch_sizes) - 1)]))
        )

    def store(self, engine: str) -> Path:
        """Return the folder of an engine's model store; a bundle has one for each architecture."""
        if self.bundle:
            return Path(self.bundle) / STORES / self.arch
        return Path(self.folder) / f"store-{engine}"

    def config(self, engine: str | None = None, store: Path | None = None) -> WorkerConfig:
        """Return what a worker on the device would be told; pages are chosen by whoever uses it."""
        chosen = engine or self.engine
        return WorkerConfig(
            name="gpu-check",
            engine=chosen,
            device=self.device,
            store=str(store or self.store(chosen)),
            pages=1,
            realtime=self.realtime,
        )


def rehearsal(folder: Path) -> Settings:
    """Return settings with which every check takes seconds, on a device that is not there."""
    return Settings(
        folder=str(folder),
        rehearsed=True,
        # Memory that nothing touches would be locked, and so taken.
        realtime=False,
        architectures=("digits",),
        main="digits",
        batch_sizes=(1, 2),
        precisions=(FP16,),
        tune_seconds=1.0,
        loads=10,
        pinned_mib=32,
        exec_runs=20,
        pauses_ms=(1, 150),
        torch_rounds=5,
        infers=500,
        infers_s=10.0,
        steady=("digits",),
        large_shape=(1_000, 5_000),
        longest=32,
        cycled=40,
        cycled_pages=16,
        cycled_s=1.0,
        cluster_copies=2,
        cluster_pages=4,
        cluster_load=0.01,
        cluster_s=1.0,
        many=4,
        many_load=0.01,
        many_s=1.0,
        many_slo_ms=400.0,
        opening_s=4.0,
        cluster_slos_ms=(400.0, 200.0),
    )
