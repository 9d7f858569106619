"""The glossary: each term once, in order; no page uses a replaced word."""

import re
from pathlib import Path

import pytest

from docs.site import PAGES, ROOT, prose
from tests.documents.pages.test_links import page_id

GLOSSARY = ROOT / "docs" / "glossary.md"
TERMS = [
    tuple(cell.strip() for cell in line.strip("|\n").split("|"))
    for line in GLOSSARY.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| term")
]
SYNONYMS = [synonym.strip() for _, _, synonyms in TERMS for synonym in synonyms.split(",") if synonym.strip()]
READ = [page for page in PAGES if page.name not in (GLOSSARY.name, "CHANGELOG.md")]


def test_terms_are_unique_and_sorted() -> None:
    terms = [term.lower() for term, _, _ in TERMS]
    assert len(terms) > 40
    assert terms == sorted(set(terms))


def test_no_term_is_a_synonym_of_another() -> None:
    assert len(set(SYNONYMS)) == len(SYNONYMS)
    assert not {term.lower() for term, _, _ in TERMS} & {synonym.lower() for synonym in SYNONYMS}


@pytest.mark.parametrize("page", READ, ids=page_id)
def test_no_page_uses_a_synonym_of_a_term(page: Path) -> None:
    text = " ".join(re.sub(r"`[^`]*`", "", prose(page)).split())
    words = "|".join(re.escape(synonym) for synonym in SYNONYMS)
    assert re.findall(rf"\b(?:{words})s?\b", text, re.IGNORECASE) == []
