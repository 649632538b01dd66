"""StringNormalizer without a locale: served by one that every machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from mainspring.compiler.artifact.arrays import as_slots, as_texts
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.reading.replaced_operators import LOCALE, with_locales
from mainspring.compiler.report import describe_locales, fields
from tests.compiler.conftest import RunStored


def normaliser(attributes: str) -> onnx.ModelProto:
    node = f'StringNormalizer<case_change_action="UPPER"{attributes}>(x)'
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 20]> g (string[N] x) => (string[N] y) {{ y = {node} }}'
    )


def locales(model: onnx.ModelProto) -> list[Any]:
    return [each.s.decode() for node in model.graph.node for each in node.attribute if each.name == "locale"]


@pytest.mark.parametrize("attributes", ["", ', locale=""'], ids=["missing", "empty"])
def test_a_node_without_a_locale_gets_one(attributes: str) -> None:
    model = normaliser(attributes)
    before = model.SerializeToString()
    found, names = with_locales(model)
    assert (locales(found), names) == ([LOCALE], ["y"])
    assert model.SerializeToString() == before


def test_a_locale_of_its_own_stays() -> None:
    model = normaliser(', locale="de_DE.UTF-8"')
    found, names = with_locales(model)
    assert found is model
    assert (locales(found), names) == (["de_DE.UTF-8"], [])


def test_it_is_served_in_batches_and_the_report_says_so(
    store: Store, run_stored: RunStored, tmp_path: Path
) -> None:
    onnx.save_model(normaliser(""), tmp_path / "m.onnx")
    compiled = compile_file(tmp_path / "m.onnx", "m", store, (1, 2, 4), most={})
    assert (compiled.manifest.batch_sizes, compiled.manifest.unshared) == ((1, 2, 4), "")
    assert fields(compiled)["located_nodes"] == ["y"]
    assert describe_locales(compiled) == f"1 node without a locale changes the case of letters by {LOCALE}: y"
    (found,) = run_stored(store, compiled.manifest, [as_slots(np.array(["Grüße", "déjà"], object))])
    assert as_texts(found).tolist() == ["GRÜßE", "DÉJÀ"]
