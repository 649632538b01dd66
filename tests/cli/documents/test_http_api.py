"""The documentation of the HTTP API against the description that the gateway gives of itself."""

from __future__ import annotations

import re
from pathlib import Path

from mainspring.cli.documents.http_api import http_api_page
from mainspring.gateway.http.openapi import description

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_page_is_up_to_date() -> None:
    written = (DOCS / "http-api.md").read_text()
    assert written == http_api_page(), "python -m mainspring.cli.documents.http_api > docs/http-api.md"


def test_every_path_and_object_has_a_section_and_every_link_leads_to_one() -> None:
    page = http_api_page()
    sections = re.findall(r"^### (.+)$", page, re.MULTILINE)
    described = description()
    for path, item in described["paths"].items():
        for method in item:
            assert method == "parameters" or f"{method.upper()} {path}" in sections
    assert set(described["components"]["schemas"]) <= set(sections)
    links = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert links <= {section.lower() for section in sections}
