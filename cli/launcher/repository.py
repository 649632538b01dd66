"""A local cluster's model repository: its store, its job, and when it is done with what it found at first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from mainspring.cli.configuration.config import Config
from mainspring.cli.launcher.jobs import RepositoryJob
from mainspring.messages.tables import ConfigError
from mainspring.repository.config import RepositoryConfig
from mainspring.repository.served_files import ServedFiles, State

NAME = "repository"
NICE = 5
"""Niceness of its process, which only polls; compiling is done by a child of the lowest priority."""


def with_store(config: Config, run_dir: Path) -> Config:
    """Return the configuration with a folder for what the repository compiles, if there is a repository.

    Raises `ConfigError` if the repository can't be.
    """
    given = config.repository
    if not given.path:
        return config
    path = Path(given.path).absolute()
    if not path.is_dir():
        raise ConfigError(
            f"the model repository {given.path} is a file; a repository is a folder with "
            "MODEL/VERSION/model.onnx in it"
            if path.exists()
            else f"the model repository {given.path} is not a folder; make it, even if it is empty at first"
        )
    if is_store(path):
        raise ConfigError(
            f"{given.path} is a model store, of compiled models; serve it with --store {given.path}. "
            "A model repository has MODEL/VERSION/model.onnx in it"
        )
    if config.cluster.profiles is not None:
        raise ConfigError(
            "a model repository has models of its own, and profiles are models too: give --model-repository "
            "or --profiles"
        )
    store = config.cluster.store
    replace = msgspec.structs.replace
    return replace(
        config,
        cluster=replace(config.cluster, store=store or str(run_dir / "store")),
        repository=replace(
            given,
            path=str(path),
            store=store or str(run_dir / "store"),
            own_store=store is None,
            state_dir=str(run_dir / NAME),
            op_libraries=config.cluster.op_libraries,
        ),
    )


def is_repository(folder: Path) -> bool:
    """Return whether a folder has a model with a version in it, as Triton lays them out."""
    with suppress(OSError):
        return any(each.is_dir() and each.name.isdecimal() for each in folder.glob("*/*"))
    return False


def is_store(folder: Path) -> bool:
    """Say whether a folder is a model store and no repository: what `Store` makes is there."""
    return all((folder / name).is_dir() for name in ("models", "executables", "weights"))


def repository_job(
    repository: RepositoryConfig, controllers: Sequence[str], pages: tuple[int, ...], cores: tuple[int, ...]
) -> RepositoryJob:
    """Return the job of the repository's process; ``pages``: the weights of several controllers."""
    told = msgspec.structs.replace(
        repository,
        controller_address=controllers[0],
        shards=tuple(controllers) if len(controllers) > 1 else (),
        shard_pages=pages,
    )
    return RepositoryJob(name=NAME, repository=told, cores=cores, nice=NICE)


class FirstLook:
    """A check whether a repository has done what it found to do at first; used by the supervisor."""

    def __init__(self, repository: RepositoryConfig) -> None:
        self.state = State(settled=True)
        self._is_there = bool(repository.path)
        self._store = Path(repository.store)
        self._files = ServedFiles(repository.state_dir)

    def prepare(self) -> None:
        """Forget what a former cluster served; raise `ConfigError` if its folders can't be written to."""
        if not self._is_there:
            return
        self.state = State()
        try:
            self._files.clear()
            self._store.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"can't write to {error.filename or self._store}: {error.strerror}") from None

    def done(self) -> bool:
        """Check again."""
        if self._is_there:
            self.state = self._files.state()
        return self.state.settled
