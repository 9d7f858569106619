"""The types of columns in tables and in channels are parsed by one grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Usage
from slackwater.store.sst.arrow_types import arrow_type
from slackwater.store.versions.column_types import ColumnType, parse_ddl, parse_type

PLAIN = st.sampled_from(
    [
        ("string", "string"),
        ("string", "varchar(7)"),
        ("bool", "boolean"),
        ("int8", "tinyint"),
        ("int64", "bigint"),
        ("double", "double"),
        ("date32", "date"),
        ("timestamp[us, tz=UTC]", "timestamp"),
        ("timestamp[us]", "timestamp_ntz"),
        ("decimal128(10, 2)", "decimal(10,2)"),
    ]
)
# Spark leaves the names of fields as they are, which cannot be read with these inside.
NAMES = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="<>(),:`"), min_size=1, max_size=5)


def structs(inner: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    def spelled(fields: list[tuple[str, tuple[str, str]]]) -> tuple[str, str]:
        arrow, spark = (", ".join(f"`{name}`: {kind[0]}" for name, kind in fields), [f"{n}:{k[1]}" for n, k in fields])
        return f"struct<{arrow}>", f"struct<{','.join(spark)}>"

    unique = st.lists(st.tuples(NAMES, inner), min_size=1, max_size=3, unique_by=lambda field: field[0].casefold())
    return unique.map(spelled)


SPELLINGS = st.recursive(
    PLAIN,
    lambda inner: (
        inner.map(lambda one: (f"list<{one[0]}>", f"array<{one[1]}>"))
        | st.tuples(PLAIN, inner).map(lambda two: (f"map<{two[0][0]}, {two[1][0]}>", f"map<{two[0][1]},{two[1][1]}>"))
        | structs(inner)
    ),
    max_leaves=8,
)


@given(st.lists(SPELLINGS, max_size=3))
def test_a_type_is_the_same_in_arrow_and_ddl_spelling(columns: list[tuple[str, str]]) -> None:
    read = parse_ddl(", ".join(f"`{number} of``them` {spark}" for number, (_, spark) in enumerate(columns)))
    assert [name for name, _ in read] == [f"{number} of`them" for number in range(len(columns))]
    assert [arrow_type(kind) for _, kind in read] == [arrow_type(parse_type(arrow)) for arrow, _ in columns]


def test_a_parsed_type_contains_the_names_of_nested_fields() -> None:
    rows = ColumnType(
        "struct", (ColumnType("int64"), ColumnType("list", (ColumnType("timestamp[us, tz=UTC]"),))), ("a b", "c")
    )
    assert parse_type("map<string, struct<`a b`: int64, c: list<timestamp[us, tz=UTC]>>>") == ColumnType(
        "map", (ColumnType("string"), rows)
    )


def test_a_channel_may_have_types_that_tables_cannot() -> None:
    assert parse_ddl("e struct<>, n interval day to second, v void") == (
        ("e", ColumnType("struct")),
        ("n", ColumnType("interval day to second")),
        ("v", ColumnType("void")),
    )
    for name in ("bigint", "void", "struct<a: interval day to second>"):
        with pytest.raises(Usage, match="cannot be a column of a state table"):
            parse_type(name)


@pytest.mark.parametrize("ddl", ["`a` array<int", "`a` " + "array<" * 100_000, "`a` map<int>", "`a` int `b` int", "`a"])
def test_invalid_ddl_is_refused(ddl: str) -> None:
    with pytest.raises(ValueError, match=r"expected|types"):
        parse_ddl(ddl)
