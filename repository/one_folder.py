"""One model's folder in Triton's layout, for `mainspring compile`: its file, and how that is compiled."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.python_folder import is_python
from mainspring.compiler.sizes.sample_forms import Described
from mainspring.messages.model import ModelSpec
from mainspring.repository.config_groups import samples_of
from mainspring.repository.layout import CONFIG_FILE, Layout, model_file
from mainspring.repository.model_config import ModelConfig
from mainspring.repository.reading import ConfigFault
from mainspring.repository.recipe import Recipe, recipe_of, served_spec

_MOST_NAMED = 8


class ModelFolder(msgspec.Struct, frozen=True):
    """The content of a model's folder."""

    folder: Path
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
            raise CompileError(f"{self.folder / CONFIG_FILE}: {error}") from error

    @property
    def described(self) -> Described:
        """Return what its configuration says beside shapes; raises `CompileError`."""
        try:
            return described_by(self.recipe, self.folder / str(self.version))
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
    if is_python(file.parent):
        raise CompileError(f"{folder} is a Python model's folder of versions: name {file.parent}")
    return ModelFolder(folder, file, version, recipe_of(found.config), found.config)


def described_by(recipe: Recipe, version: Path) -> Described:
    """Return what a recipe says beside shapes; raise `ConfigFault`. ``version`` is the version's folder.

    Libraries of operators are looked for in that folder, in the model's and in the repository's.
    """
    libraries = []
    for name in recipe.libraries:
        places = [folder / name for folder in (version, version.parent, version.parent.parent)]
        libraries.append(next((place for place in places if place.is_file()), places[0]))
    return Described(
        recipe.sequencing,
        samples=samples_of(recipe.warmup, version.parent),
        optional=recipe.optional,
        libraries=tuple(libraries),
        unverified=recipe.unverified,
    )


def _models_in(folder: Path) -> list[str]:
    """Return the models of a folder that is a repository; none if it is a model, with versions or a file."""
    try:
        inner = sorted(each.name for each in folder.iterdir() if each.is_dir())
    except OSError as error:
        raise CompileError(f"can't read {folder}: {error.strerror}") from error
    if (folder / CONFIG_FILE).is_file() or any(name.isdecimal() for name in inner):
        return []
    return [name for name in inner if any(each.name.isdecimal() for each in (folder / name).iterdir())]
