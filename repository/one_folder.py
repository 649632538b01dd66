"""One model's folder in Triton's layout, for `mainspring compile`: its file, and how that is compiled."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mainspring.compiler.artifact.errors import CompileError
from mainspring.messages.model import ModelSpec
from mainspring.repository.layout import CONFIG_FILE, Layout, model_file
from mainspring.repository.model_config import ModelConfig
from mainspring.repository.reading import ConfigFault
from mainspring.repository.recipe import Recipe, recipe_of, served_spec
from mainspring.repository.warmup import samples_of

_MOST_NAMED = 8


class ModelFolder(msgspec.Struct, frozen=True):
    """What a model's folder holds."""

    file: Path
    """The ONNX file of the highest version that the configuration has served."""
    version: int
    recipe: Recipe
    config: ModelConfig

    def check(self, spec: ModelSpec) -> None:
        """Raise `CompileError` if the configuration says of a tensor what the compiled model is not."""
        try:
            served_spec(spec, spec.name, self.version, self.config)
        except ConfigFault as error:
            raise CompileError(f"{self.file.parent.parent / CONFIG_FILE}: {error}") from error

    @property
    def samples(self) -> Mapping[str, Any]:
        """Rows that the model takes, as its configuration gives them; raises `CompileError`."""
        try:
            return samples_of(self.config.warmup, self.file.parent.parent)
        except ConfigFault as error:
            raise CompileError(str(error)) from error

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what the configuration asks for and does not get."""
        return tuple(f"{CONFIG_FILE}, {warning}" for warning in self.config.warnings)


def read_folder(folder: Path) -> ModelFolder:
    """Return what a model's folder holds; raise `CompileError` if no version of it can be compiled."""
    folder = folder.resolve()
    models = _models_in(folder)
    if models:
        named = ", ".join(models[:_MOST_NAMED]) + (", ..." if len(models) > _MOST_NAMED else "")
        raise CompileError(
            f"{folder} is a repository of models ({named}): name the folder of one, or serve all with "
            f"`mainspring up --model-repository {folder}`"
        )
    found = Layout(folder.parent, settle_ns=0).look(folder.name, time.time_ns(), lambda *_: False)
    if found is None:
        raise CompileError(f"{folder} is no folder of a model; give its path, or that of an ONNX file")
    if found.fault:
        raise CompileError(f"{folder}: {found.fault}")
    version = found.chosen[-1]
    file = Path(model_file(str(folder / str(version)), found.config.file_name))
    return ModelFolder(file, version, recipe_of(found.config), found.config)


def _models_in(folder: Path) -> list[str]:
    """Return the models of a folder that is a repository; none if it is a model, with versions or a file."""
    try:
        inner = sorted(each.name for each in folder.iterdir() if each.is_dir())
    except OSError as error:
        raise CompileError(f"can't read {folder}: {error.strerror}") from error
    if (folder / CONFIG_FILE).is_file() or any(name.isdecimal() for name in inner):
        return []
    return [name for name in inner if any(each.name.isdecimal() for each in (folder / name).iterdir())]
