"""The repository process's configuration: one flat struct, every field with its unit and its limits."""

from __future__ import annotations

import msgspec

from mainspring.messages.choices import one_of

MODES = ("none", "poll", "explicit")


class RepositoryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The repository's settings that an operator may make. Raises ValueError on a value that can't work."""

    path: str = ""
    """Folder in Triton's layout, MODEL/config.pbtxt and MODEL/VERSION/model.onnx, that is served; empty for
    none. Relative to the configuration file."""
    mode: str = "poll"
    """Mode of loading models: ``poll`` looks for changes again and again, ``none`` once at the start, and
    ``explicit`` loads what clients ask for. Only ``explicit`` lets clients load and unload."""
    load_models: tuple[str, ...] = ()
    """Models that are loaded at the start in mode explicit; ``*`` for all."""
    poll_interval_ms: float = 2_000.0
    """Time between two looks at the folder."""
    settle_ms: float = 1_000.0
    """Time that files must have been left alone before they are taken for whole."""
    vanish_grace_ms: float = 10_000.0
    """Time that a model's folder may be away before the model is no longer served: a checkout, a copy or a
    mount takes folders away for a moment. 0: it is removed at the next look."""
    address: str = ""
    """Address at which gateways reach the process, for the index and for loading: ``unix:///PATH`` or
    ``tcp://HOST:PORT``, where port ``*`` takes any free one. Empty: the socket repository.sock in the run
    folder."""
    compile_timeout_s: float = 1_800.0
    """Time that the compilation of one version may take; then it is given up."""
    compile_memory_bytes: int = 16 << 30
    """Memory that the compiler's process may have."""
    op_libraries: tuple[str, ...] = ()
    """Libraries of operators that models may be compiled with."""
    prepare_patience_s: float = 60.0
    """Time that a version that one worker has prepared waits for the others before it is served."""
    warm_patience_s: float = 5.0
    """Time that a version that takes the place of one in use waits for a worker to have time to load it."""
    max_sent_files_bytes: int = 4 << 30
    """Bytes of the files with which clients have loaded models, all together; one more load is refused."""
    keys: str = ""
    """Folder with this process's certificate and key, by which it speaks TLS over TCP with the others; empty:
    what it says over TCP is not encrypted."""
    controller_address: str = "tcp://127.0.0.1:7401"
    """Address of the controller."""
    shards: tuple[str, ...] = ()
    """Addresses of all controllers where each has a part of the models, in the order of their shards; empty:
    there is one."""
    shard_pages: tuple[int, ...] = ()
    """The weight of each shard; empty: the same of all."""
    controller_timeout_ms: float = 1_000.0
    """A controller that was silent for this long is lost; hellos follow until one answers."""
    store: str = ""
    """Folder of the model store that models are compiled into; the workers need it too."""
    own_store: bool = False
    """True if only this process compiles into that store, so that it may delete unused artifacts."""
    state_dir: str = ""
    """Folder for what a restarted controller has to know at once."""

    def __post_init__(self) -> None:
        """Check the values."""
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if field == "vanish_grace_ms":
                if not value >= 0:
                    raise ValueError(f"the repository's {field} is {value}; it must be 0 or more")
            elif isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
                raise ValueError(f"the repository's {field} is {value}; it must be greater than 0")
        if self.mode not in MODES:
            raise ValueError(
                f"the repository's mode is {self.mode!r}; it is one of {one_of(self.mode, MODES)}"
            )
        if self.load_models and self.mode != "explicit":
            raise ValueError("the repository's load_models are for the mode explicit; others load all models")
