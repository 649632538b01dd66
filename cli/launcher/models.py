"""The models of a local cluster: those of a store, emulated copies of a table of profiles, or what a model
repository had it serve.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mainspring.cli.configuration.groups import DeviceConfig
from mainspring.messages.model import ModelSpec
from mainspring.messages.served import ServedModel
from mainspring.messages.tables import ConfigError

if TYPE_CHECKING:
    # Each process reads its job, whose types are here: what only a controller needs waits for its call.
    from mainspring.compiler.artifact.manifest import Manifest
    from mainspring.compiler.artifact.store import Store
    from mainspring.controller.recovery import Awaited

_LOGGER = logging.getLogger(__name__)


class ModelSource(msgspec.Struct, frozen=True):
    """The source of models: one of the first two, or a repository, alone or beside a store."""

    store: str | None = None
    """Folder of a model store."""
    profiles: str | None = None
    """CSV file in the columns of Clockwork's table 1 (appendix A)."""
    copies: int = 1
    """Instances of each row of ``profiles``, with weights of their own."""
    devices: tuple[DeviceConfig, ...] = ()
    """Kinds of emulated devices, each with profiles or a speed of its own; none for one kind."""
    state_dir: str | None = None
    """Folder in which a repository keeps what is served of it."""

    def specs(self) -> list[ModelSpec]:
        """Return the models by name; raise `ConfigError` or the store's error if they can't be read.

        Of a store, a model whose manifest is damaged is left out, with a warning, and so are a repository's,
        which serves what it wants itself.
        """
        specs, left_out = self.survey()
        for why in left_out.values():
            _LOGGER.warning("left out of what is served: %s", why)
        return specs

    def survey(self) -> tuple[list[ModelSpec], dict[str, str]]:
        """Return the models by name as `specs` does, and those that are left out, each with why."""
        if self.profiles is not None:
            return self._emulated(Path(self.profiles)), {}
        from mainspring.compiler.artifact.profiles import grouped
        from mainspring.compiler.artifact.store import Store
        from mainspring.compiler.rows.proving import proved_specs
        from mainspring.repository.recipe import is_artifact_name

        if self.store is None or (self.state_dir is not None and not Path(self.store).is_dir()):
            return [], {}
        store = Store(self.store)
        manifests, unreadable = store.survey()
        specs, left_out = grouped(
            proved_specs(store, [each for each in manifests if not is_artifact_name(each.name)])
        )
        left_out |= {name: str(error) for name, error in unreadable.items() if not is_artifact_name(name)}
        return specs, left_out

    def served(self) -> tuple[list[ModelSpec], list[ServedModel]]:
        """Return what a repository had served when it last changed something."""
        from mainspring.repository.served_files import ServedFiles

        return ServedFiles(self.state_dir).read() if self.state_dir is not None else ([], [])

    def _emulated(self, path: Path) -> list[ModelSpec]:
        from mainspring.compiler.artifact.errors import CompileError
        from mainspring.compiler.artifact.profiles import read_profile_table

        try:
            specs = sorted(read_profile_table(path, self.copies), key=lambda spec: spec.name)
            return self._on_kinds(specs) if self.devices else specs
        except CompileError as error:
            raise ConfigError(str(error)) from None

    def _on_kinds(self, specs: Sequence[ModelSpec]) -> list[ModelSpec]:
        """Return models with a profile for each kind of device."""
        from mainspring.simulator.cluster import with_profiles
        from mainspring.simulator.spec import DeviceGroup, SpecError

        groups = [
            DeviceGroup(kind=each.kind, speed=each.speed, profiles=each.profiles) for each in self.devices
        ]
        try:
            return [with_profiles(spec, groups) for spec in specs]
        except SpecError as error:
            raise ConfigError(str(error)) from None

    def damaged(self) -> list[str]:
        """Return what is wrong with the models that can't run on this machine while others can."""
        from mainspring.compiler.artifact.store import Store

        store = Store(self.store or "")
        manifests, unreadable = store.survey()
        found = [_fault(store, each, "") for each in _by_model(manifests)]
        return [str(each) for each in (*unreadable.values(), *found) if each is not None]

    def check_files(self, *, whole: bool = False, device: str = "") -> None:
        """Raise the store's error if no model can run on this machine: files missing, or of another CPU.

        A worker says of a single one that it can't be prepared, and the others are served. ``whole``: raise
        the error if any model can't, or its manifest is damaged. Raises `ConfigError` for a model that was
        compiled for another ``device``, if one is given.
        """
        if self.store is None or (self.state_dir is not None and not Path(self.store).is_dir()):
            return
        from mainspring.compiler.artifact.store import Store
        from mainspring.repository.recipe import is_artifact_name

        store = Store(self.store)
        manifests = [store.manifest(name) for name in store.names()] if whole else store.survey()[0]
        own = _by_model([manifest for manifest in manifests if not is_artifact_name(manifest.name)])
        faults = [fault for each in own if (fault := _fault(store, each, device)) is not None]
        unlike = [fault for fault in faults if isinstance(fault, ConfigError)]
        if unlike or (faults and (whole or len(faults) == len(own))):
            raise (*unlike, *faults)[0]


def _by_model(manifests: Sequence[Manifest]) -> list[list[Manifest]]:
    """Return the artifacts of each model, which may have some for unlike hosts."""
    from mainspring.compiler.artifact.profiles import served_name

    found: dict[str, list[Manifest]] = {}
    for manifest in manifests:
        found.setdefault(served_name(manifest.name), []).append(manifest)
    return list(found.values())


def _fault(store: Store, artifacts: Sequence[Manifest], device: str) -> Exception | None:
    """Return why none of a model's artifacts can run here, by its first; None if one can."""
    from mainspring.compiler.artifact.errors import StoreError

    faults: list[Exception] = []
    for manifest in artifacts:
        try:
            _check(store, manifest, device)
        except (StoreError, ConfigError) as error:
            faults.append(error)
    return faults[0] if len(faults) == len(artifacts) else None


def _check(store: Store, manifest: Manifest, device: str) -> None:
    """Raise `StoreError` if a model can't run here, `ConfigError` if it is for another device."""
    from mainspring.compiler.artifact.store import recompile_command
    from mainspring.compiler.artifact.target import check_target

    store.weights_path(manifest)
    info = store.executable_info(manifest)
    check_target(info, recompile_command(manifest.name, manifest.source, store.root))
    if device not in ("", info.device):
        raise ConfigError(
            f"{manifest.name} was compiled for the device {info.device} and the cluster's is "
            f"{device}; compile it again with --device {device}, or start the cluster with "
            f"--device {info.device}"
        )


INTERVAL_S = 1.0
"""Time between two attempts to read it."""
_ADOPTING = "%s; serving what workers hold, until it can be read"


def read(source: ModelSource, stop: threading.Event, *, adopt: bool) -> tuple[list[ModelSpec], Awaited]:
    """Return a source's models, and what could not be read; a thread retries that until ``stop``.

    ``adopt``: if nothing can be read, serve what workers hold instead of raising `StoreError`.
    """
    from mainspring.compiler.artifact.errors import StoreError
    from mainspring.controller.recovery import Awaited

    try:
        specs, left_out = source.survey()
        awaited = Awaited(left_out)
    except StoreError as error:
        if not adopt:
            raise
        _LOGGER.warning(_ADOPTING, error)
        specs, awaited = [], Awaited(adopt=True)
    for why in awaited.left_out.values():
        _LOGGER.warning("left out of what is served: %s", why)
    if awaited.left_out or awaited.adopt:
        arguments = (source, dict(awaited.left_out), awaited, stop)
        threading.Thread(target=_look, args=arguments, name="store", daemon=True).start()
    return specs, awaited


def _look(source: ModelSource, left_out: dict[str, str], awaited: Awaited, stop: threading.Event) -> None:
    """Put what becomes readable where the controller finds it."""
    from mainspring.compiler.artifact.errors import StoreError
    from mainspring.compiler.artifact.store import Store

    store, whole = Store(source.store or ""), awaited.adopt
    seen = {name: store.manifest_fingerprint(name) for name in left_out}
    while (left_out or whole) and not stop.wait(INTERVAL_S):
        now = {name: store.manifest_fingerprint(name) for name in left_out}
        if now == seen and not whole:
            continue
        seen = now
        try:
            specs, left_out = source.survey()
        except StoreError:
            continue
        for spec in specs:
            if whole or spec.name in seen:
                awaited.found.put(spec)
        whole = False
        seen = {name: store.manifest_fingerprint(name) for name in left_out}
