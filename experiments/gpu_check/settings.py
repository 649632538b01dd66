"""How much of everything is done: on a GPU, and in a rehearsal without one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mainspring.compiler.artifact.manifest import FP16, TF32
from mainspring.compiler.artifact.target import Gpu
from mainspring.worker.config import WorkerConfig

OUTPUT = Path("out/gpu-check")
TVM, ONNXRUNTIME = "tvm", "onnxruntime"
STORES = "stores"
"""The folder of a bundle with its stores."""
LARGE = "one-large-tensor"
"""What the model is called whose weights are one tensor of many pages."""
LARGE_SIZES = (1, 4)
LENGTHS = "open-lengths"
"""What the model is called that has kernels for buckets of lengths."""
LENGTHS_SIZES = (1, 4)


def the_zoo() -> tuple[str, ...]:
    """Return the names of all architectures of the zoo."""
    # The import takes ONNX, which a machine that only checks need not have.
    from mainspring.compiler.zoo import names

    return tuple(names())


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks are told."""

    folder: str = str(OUTPUT)
    """For model stores, logs and the report."""
    device: str = "cuda:0"
    arch: str = ""
    """What kernels are compiled for, such as ``sm_90``; empty for what the GPU is."""
    engine: str = TVM
    """Of every check but that of the outputs."""
    engines: tuple[str, ...] = (TVM, ONNXRUNTIME)
    """Whose outputs are compared."""
    realtime: bool = True
    limit_s: float = 3600.0
    """When a check's process is ended. One that takes long does less, if it could not do all by then."""
    bundle: str = ""
    """Folder of an unpacked bundle, whose models are checked; empty for models that are compiled here."""
    rehearsed: bool = False
    """Whether the GPU is one that is not there: what would be judged is told as rehearsed."""

    architectures: tuple[str, ...] = msgspec.field(default_factory=the_zoo)
    """Whose outputs are compared."""
    compile_s: float = 150.0
    """What is not compiled by then is not compared."""
    main: str = "resnet50"
    """The model of all other checks."""
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Of the main model; of the others the smallest and the third."""
    precisions: tuple[str, ...] = (TF32, FP16)
    """The main model is compiled for these beside FP32, for its smallest and its largest batch size."""

    tune_seconds: float = 0.0
    """Bound of a search for fast tiles by timing; 0 for none."""
    gpu: Gpu | None = None
    """What kernels are divided for, as the driver describes it; None for the usual GPU of `arch`."""
    loads: int = 50
    pinned_mib: int = 2_048
    """Of host memory of each kind, pinned and given back."""
    exec_runs: int = 500
    """Of each batch size, and of each way in which EXEC is disturbed."""
    pauses_ms: tuple[int, ...] = (1, 10, 100, 1_000, 5_000)
    """Before an EXEC, nothing is done for each of these, a few times."""
    torch_rounds: int = 50
    """Of each precision, ours and torch's in turns."""
    infers: int = 100_000
    infers_s: float = 90.0
    """Of all of them; the time does for a model only if one takes no longer than its share."""
    steady: tuple[str, ...] = ("resnet50", "mobilenet", "squeezenet", "resnet20")
    """The first that the time does for is run; the last if it does for none."""
    repeats: int = 20
    """Launches of a short kernel between two looks at the device's clock."""

    large_shape: tuple[int, int] = (25_088, 4_096)
    """Of a float32 matrix that is one tensor of 411 MB: the largest of VGG."""
    longest: int = 256
    """Of the lengths of the model with buckets."""
    cycled: int = 2_000
    cycled_pages: int = 1_024
    """Of the cache that they are cycled through."""
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
    """Of requests beside an OPEN, which the scheduler may put off for 10 s."""

    @property
    def second(self) -> str:
        """What the model is called that is like the main one, but for its weights."""
        return f"{self.main}-like"

    @property
    def rounded(self) -> tuple[str, ...]:
        """What the main model is called in each of its other precisions."""
        return tuple(f"{self.main}-{precision}" for precision in self.precisions)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
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
