"""A model's artifacts for unlike hosts in one store: the first under its name, others under ``NAME@TARGET``.

All are of one file, compiled with the same options, on each kind of host or for each kind of GPU. Served they
are one model (`mainspring.messages.targets`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from mainspring.compiler.artifact.errors import CompileError, StoreError
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import ModelSpec
from mainspring.messages.targets import TARGET, merged

_LOGGER = logging.getLogger(__name__)
_SEPARATOR = "@"


def served_name(stored: str) -> str:
    """Return what a stored artifact is served as: the name before ``@TARGET``, or its own."""
    name, _, target = stored.partition(_SEPARATOR)
    return name if TARGET.fullmatch(target) else stored


def beside(store: Store, name: str) -> list[Manifest]:
    """Return the readable artifacts that a store has of a model, that of the model's own name first."""
    names = [each for each in store.names() if served_name(each) == name] if store.root.is_dir() else []
    found = []
    for each in sorted(names, key=lambda each: (each != name, each)):
        try:
            found.append(store.manifest(each))
        except StoreError as error:
            _LOGGER.warning("left out: %s", error)
    return found


def put(store: Store, manifest: Manifest, *, adds: bool) -> Manifest:
    """Store the manifest of an artifact that was compiled under a model's name; return it as it is stored.

    ``adds``: beside those for other targets; otherwise it replaces all of the model's. Raises `CompileError`
    if it can't be served together with those, which names what differs.
    """
    known = [each for each in beside(store, manifest.name) if each.target != manifest.target]
    if not adds:
        store.put_manifest(manifest)
        for each in beside(store, manifest.name):
            if each.name != manifest.name:
                store.remove(each.name)
        return manifest
    for each in known:
        if (each.source.kind, each.source.sha256, each.source.seed) != (
            manifest.source.kind,
            manifest.source.sha256,
            manifest.source.seed,
        ):
            raise CompileError(
                f"{manifest.name} was compiled for {each.target or 'this host'} of another file "
                f"({each.source.path}): compile both of one file, or leave --beside out to replace it"
            )
        try:
            merged(each.spec(), manifest.spec())
        except ValueError as error:
            raise CompileError(f"{manifest.name} can't be served with what is stored: {error}") from None
    if any(each.name == manifest.name for each in known):
        name = f"{manifest.name}{_SEPARATOR}{manifest.target}"
        manifest = msgspec.structs.replace(manifest, name=name)
    store.put_manifest(manifest)
    return manifest


def grouped(specs: Iterable[ModelSpec]) -> tuple[list[ModelSpec], dict[str, str]]:
    """Return stored models as they are served, in the order in which their names come.

    An artifact that can't be served together with the others of its model is left out, and why is told by
    its name in the store.
    """
    found: dict[str, ModelSpec] = {}
    left_out: dict[str, str] = {}
    for spec in specs:
        name, stored_as = served_name(spec.name), spec.name
        own = spec if name == stored_as else msgspec.structs.replace(spec, name=name, stored_as=stored_as)
        try:
            found[name] = merged(found[name], own) if name in found else own
        except ValueError as error:
            left_out[stored_as] = f"{stored_as} is not served: {error}"
    return list(found.values()), left_out
