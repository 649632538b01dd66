"""Which models a local cluster serves: those of a store, emulated copies of a table of profiles, or what a
model repository had it serve.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from mainspring.launch.tables import ConfigError
from mainspring.messages.model import ModelSpec, ServedModel
from mainspring.repository.recipe import is_artifact_name
from mainspring.repository.served_files import ServedFiles


class ModelSource(msgspec.Struct, frozen=True):
    """Where models come from: one of the first two, or a repository, alone or beside a store."""

    store: str | None = None
    """Folder of a model store."""
    profiles: str | None = None
    """CSV file in the columns of Clockwork's table 1 (appendix A)."""
    copies: int = 1
    """Instances of each row of ``profiles``, with weights of their own."""
    state_dir: str | None = None
    """Folder in which a repository keeps what is served of it."""

    def specs(self) -> list[ModelSpec]:
        """Return the models by name; raise `ConfigError` or the store's error if they can't be read.

        Of a store, a model whose manifest is damaged is left out, with a warning, and so are a repository's,
        which serves what it wants itself.
        """
        if self.profiles is not None:
            return self._emulated(Path(self.profiles))
        from mainspring.compiler.store import Store

        if self.state_dir is not None and not Path(self.store or "").is_dir():
            return []
        return [spec for spec in Store(self.store or "").specs() if not is_artifact_name(spec.name)]

    def served(self) -> tuple[list[ModelSpec], list[ServedModel]]:
        """Return what a repository had served when it last changed something."""
        return ServedFiles(self.state_dir).read() if self.state_dir is not None else ([], [])

    def _emulated(self, path: Path) -> list[ModelSpec]:
        from mainspring.compiler.errors import CompileError
        from mainspring.compiler.profiles import read_profile_table

        try:
            return sorted(read_profile_table(path, self.copies), key=lambda spec: spec.name)
        except CompileError as error:
            raise ConfigError(str(error)) from None

    def check_files(self, *, whole: bool = False, device: str = "") -> None:
        """Raise the store's error if a model can't run on this machine: files missing, or of another CPU.

        ``whole``: also if a manifest is damaged, whose model is left out of what is served otherwise. Raises
        `ConfigError` for a model that was compiled for another ``device``, if one is given.
        """
        if self.store is None or (self.state_dir is not None and not Path(self.store).is_dir()):
            return
        from mainspring.compiler.store import Store, recompile_command
        from mainspring.compiler.target import check_target

        store = Store(self.store)
        for manifest in map(store.manifest, store.names()) if whole else store.manifests():
            if is_artifact_name(manifest.name):
                continue
            store.weights_path(manifest)
            remedy = recompile_command(manifest.name, manifest.source, store.root)
            info = store.executable_info(manifest)
            check_target(info, remedy)
            if device not in ("", info.device):
                raise ConfigError(
                    f"{manifest.name} was compiled for the device {info.device} and the cluster's is "
                    f"{device}; compile it again with --device {device}, or start the cluster with "
                    f"--device {info.device}"
                )
