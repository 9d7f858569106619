"""Quotes and comments, which may contain keywords and `;`, are recognised as by DuckDB's tokenizer."""

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.snapshot.query.clauses import tokenize

PIECES = st.sampled_from(
    [
        *("SELECT", "at", "AT", "carriers", "_x1", "a$b", "12", "1.5", "(", ")", ",", ".", "*", "=", "||", "::"),
        *("'a'", "''", "'it''s'", "'--'", "'/*'", "';'", "'\"'", '"q"', '"it""s"', '";"', "E'a\\'b'", "e'\\\\'", "e''"),
        *("-- at 'x'\n", "--;\n", "/* ; */", "/* ' */", "/* /* */ ' */", "$$ ; ' $$", "$t$ $$ ; $t$"),
    ]
)
TEXTS = st.lists(PIECES, max_size=12).map(" ".join)


@given(TEXTS)
def test_names_and_strings_begin_where_duckdbs_tokenizer_says(text: str) -> None:
    kinds = (duckdb.token_type.identifier, duckdb.token_type.keyword, duckdb.token_type.string_const)
    starts = {start for start, kind in duckdb.tokenize(text) if kind in kinds}
    assert {word.start for word in tokenize(text) if word.kind not in ("sign", "number")} == starts


@given(st.text(st.sampled_from("at '\"$/*-\n;eE\\x")))
def test_the_words_of_any_text_are_contiguous_up_to_its_end(text: str) -> None:
    found = tokenize(text)
    ends = [0, *(word.end for word in found)]
    assert all(before <= word.start < word.end <= len(text) for before, word in zip(ends, found, strict=False))
    assert all(word.kind != "open" for word in found[:-1])


@pytest.mark.parametrize(
    "text", ["'abc", "'abc''", '"abc', "E'abc\\'", "/* abc", "/* /* */", "$$abc", "$a$ $$", "E'", "$$"]
)
def test_an_unclosed_quote_or_comment_extends_to_the_end(text: str) -> None:
    assert [word.kind for word in tokenize(f"{text};")] == ["open"]


def test_the_values_of_names_and_strings_lack_the_quotes() -> None:
    found = tokenize("""At 'it''s' "a""b" E'x'""")
    assert [(word.kind, word.value) for word in found[:3]] == [("name", "At"), ("string", "it's"), ("quoted", 'a"b')]
    assert found[0].is_keyword("at")
    assert not tokenize('"at"')[0].is_keyword("at")
