"""The GPUs that CUDA can use here; ``python -m mainspring.worker.engines.cuda.devices`` prints them.

CUDA alone knows how it counts GPUs (CUDA_VISIBLE_DEVICES, its own order), and a process that has asked CUDA
once can't be forked any more. So the launcher asks in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from mainspring.compiler.artifact.target import Attributes, Gpu, found_gpu
from mainspring.worker.engines.cuda.driver import DriverMissing, choose_bindings

TIMEOUT_S = 60.0
"""A driver that was idle for a long time takes seconds to wake."""


class FoundDevice(msgspec.Struct, frozen=True):
    """A GPU as CUDA counts it."""

    number: int
    name: str
    bus_id: str
    arch: str = ""
    """The architecture that kernels are compiled for, such as ``sm_90``."""
    attributes: Attributes = Attributes()

    @property
    def gpu(self) -> Gpu:
        """Return the facts that the compiler needs of it."""
        return found_gpu(self.arch, self.attributes)


def find_devices() -> list[FoundDevice]:
    """Return the GPUs of this machine in CUDA's order; raise `DriverMissing`, with the reason, if none."""
    command = [sys.executable, "-m", "mainspring.worker.engines.cuda.devices"]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise DriverMissing(f"NVIDIA's driver did not answer within {TIMEOUT_S:.0f} s") from None
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        raise DriverMissing(lines[-1])
    return msgspec.json.decode(answer.stdout, type=list[FoundDevice])


def main() -> int:
    """Print the GPUs as JSON; return 1, with the reason on stderr, if there are none."""
    try:
        bindings = choose_bindings()
        found = [bindings.describe_device(number) for number in range(bindings.count_devices())]
    except DriverMissing as error:
        print(error, file=sys.stderr)
        return 1
    devices = [FoundDevice(number, *facts) for number, facts in enumerate(found)]
    print(msgspec.json.encode(devices).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
