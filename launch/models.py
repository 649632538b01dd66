"""Which models a local cluster serves: those of a store, or emulated copies of a table of profiles."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mainspring.launch.tables import ConfigError
from mainspring.messages.model import ModelSpec


class ModelSource(msgspec.Struct, frozen=True):
    """Where models come from: exactly one of the two."""

    store: str | None = None
    """Folder of a model store."""
    profiles: str | None = None
    """CSV file in the columns of Clockwork's table 1 (appendix A)."""
    copies: int = 1
    """Instances of each row of ``profiles``, with weights of their own."""

    def specs(self) -> list[ModelSpec]:
        """Return the models by name; raise `ConfigError` or the store's error if they can't be read.

        Of a store, a model whose manifest is damaged is left out, with a warning.
        """
        if self.profiles is not None:
            return self._emulated(Path(self.profiles))
        from mainspring.compiler.store import Store

        return Store(self.store or "").specs()

    def _emulated(self, path: Path) -> list[ModelSpec]:
        from mainspring.compiler.errors import CompileError
        from mainspring.compiler.profiles import read_profile_table

        try:
            return sorted(read_profile_table(path, self.copies), key=lambda spec: spec.name)
        except CompileError as error:
            raise ConfigError(str(error)) from None

    def check_files(self, *, whole: bool = False) -> None:
        """Raise the store's error if a model can't run on this machine: files missing, or of another CPU.

        ``whole``: also if a manifest is damaged, whose model is left out of what is served otherwise.
        """
        if self.store is None:
            return
        from mainspring.compiler.store import Store, recompile_command
        from mainspring.compiler.target import check_target

        store = Store(self.store)
        for manifest in map(store.manifest, store.names()) if whole else store.manifests():
            store.weights_path(manifest)
            remedy = recompile_command(manifest.name, manifest.source, store.root)
            check_target(store.executable_info(manifest), remedy)
