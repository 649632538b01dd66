"""The locale in which StringNormalizer changes the case of letters, for nodes that name none.

ONNX's own default, en_US.UTF-8, is not installed everywhere, and ONNX Runtime can't run the node without it.
``C.UTF-8`` is part of the C library, and has the same upper and lower case for the letters of all languages.
"""

from __future__ import annotations

import onnx
from onnx import helper

from mainspring.compiler.normalise import all_nodes

LOCALE = "C.UTF-8"


def give_locale(graph: onnx.GraphProto) -> list[str]:
    """Give the locale to each StringNormalizer without one; return the names of these nodes."""
    given = []
    for node in all_nodes(graph):
        if _lacks_locale(node):
            kept = [each for each in node.attribute if each.name != "locale"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("locale", LOCALE)])
            given.append(node.name or node.output[0])
    return given


def with_locales(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """Return the model with a locale wherever it needs one, and the names of the nodes that were given it.

    ``model`` itself is returned, unchanged, if it has no such node.
    """
    if not any(map(_lacks_locale, all_nodes(model.graph))):
        return model, []
    found = onnx.ModelProto()
    found.CopyFrom(model)
    return found, give_locale(found.graph)


def _lacks_locale(node: onnx.NodeProto) -> bool:
    return node.op_type == "StringNormalizer" and not any(
        each.name == "locale" and each.s for each in node.attribute
    )
