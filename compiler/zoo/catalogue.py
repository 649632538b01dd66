"""The zoo's architectures by name."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.zoo.architecture import Architecture, instantiate
from mainspring.compiler.zoo.light import light
from mainspring.compiler.zoo.networks import bert, digits, mobilenet, resnet, resnet_small_images
from mainspring.messages.choices import one_of

_CATALOGUE: dict[str, Callable[[], Architecture]] = {
    "alexnet": partial(light, "bvlc_alexnet"),
    "bert-base": partial(bert, "bert-base", 12, 768),
    "bert-mini": partial(bert, "bert-mini", 4, 256),
    "bert-small": partial(bert, "bert-small", 4, 512),
    "bert-tiny": partial(bert, "bert-tiny", 2, 128),
    "densenet121": partial(light, "densenet121"),
    "digits": partial(digits, "digits"),
    "inception-v1": partial(light, "inception_v1"),
    "inception-v2": partial(light, "inception_v2"),
    "mobilenet": partial(mobilenet, "mobilenet"),
    "resnet18": partial(resnet, "resnet18", (2, 2, 2, 2)),
    "resnet20": partial(resnet_small_images, "resnet20", 3),
    "resnet34": partial(resnet, "resnet34", (3, 4, 6, 3)),
    "resnet50": partial(light, "resnet50"),
    "resnet56": partial(resnet_small_images, "resnet56", 9),
    "shufflenet": partial(light, "shufflenet"),
    "squeezenet": partial(light, "squeezenet"),
    "vgg19": partial(light, "vgg19"),
    "zfnet512": partial(light, "zfnet512"),
}


def names() -> list[str]:
    """Return the names of all architectures, sorted."""
    return sorted(_CATALOGUE)


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """Return a model of the architecture ``name``, its weights drawn with ``seed``, its batch axis open.

    Raises `CompileError` for a name that is not in the zoo.
    """
    return instantiate(architecture_of(name), np.random.default_rng([seed, zlib.crc32(name.encode())]))


@functools.cache
def architecture_of(name: str) -> Architecture:
    """Return the architecture ``name``; raise `CompileError` for a name that is not in the zoo."""
    if name not in _CATALOGUE:
        raise CompileError(f"the zoo has no {name!r}: it has {one_of(name, names())}")
    return _CATALOGUE[name]()
