"""Which of the engines can be checked on the settings' device, with the packages that are installed here."""

from __future__ import annotations

from mainspring.experiments.gpu_check.settings import ONNXRUNTIME, Settings
from mainspring.worker.engines.registry import CUDA_ENGINES, ENGINES


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
