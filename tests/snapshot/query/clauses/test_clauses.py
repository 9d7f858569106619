import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Usage
from slackwater.snapshot.query.clauses import Clause, TableAtClause, VersionsClause, parse_statement, strip_comments

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("sql", "clauses", "rewritten"),
    [
        ("FROM routes AT '-1h'", [TableAtClause("routes", "-1h")], 'FROM "@-1h"."routes"'),
        (
            "FROM routes now JOIN routes at 'v4' AS was USING (k)",
            [TableAtClause("routes", "v4")],
            'FROM routes now JOIN "@v4"."routes" AS was USING (k)',
        ),
        (
            "FROM \"by-tail\" AT -- then\n '~3', b AT '~3'",
            [TableAtClause("by-tail", "~3"), TableAtClause("b", "~3")],
            'FROM "@~3"."by-tail", "@~3"."b"',
        ),
        ("FROM r AT 'x' JOIN r AT 'x' b ON true", [TableAtClause("r", "x")], 'FROM "@x"."r" JOIN "@x"."r" b ON true'),
        ("FROM versions('r')", [VersionsClause("r")], 'FROM "@..now  of r"."versions"'),
        (
            "FROM VERSIONS ('R', '-1h', 'now', '5m') v",
            [VersionsClause("r", "-1h", "now", "5m")],
            'FROM "@-1h..now 5m of r"."versions" v',
        ),
    ],
)
def test_each_at_or_versions_clause_becomes_the_name_of_a_view(sql: str, clauses: list[Clause], rewritten: str) -> None:
    found = parse_statement(sql)
    assert (list(found.clauses), found.sql) == (clauses, rewritten)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT now() AT TIME ZONE 'UTC' AS at",
        "SELECT t.at, 'x' AS b, t.at = 'x', t.at || 'x', t.at IN ('x'), t.at LIKE 'x' FROM (SELECT 'x' AS \"at\") t",
        "SELECT 'routes AT ''-1h''', \"routes AT '-1h'\" FROM (SELECT 1 AS \"routes AT '-1h'\") -- routes AT '-1h'",
        "SELECT $$routes AT '-1h'$$ /* versions('r') */",
        "WITH versions(a) AS (VALUES ('x')) SELECT a FROM versions",
        "SELECT versions.a FROM (SELECT 1 AS a) AS versions",
    ],
)
def test_duckdbs_own_statements_are_unchanged(sql: str) -> None:
    duckdb.sql(sql)
    assert (parse_statement(sql).sql, parse_statement(sql).clauses) == (sql, ())


@given(NAMES, NAMES)
def test_a_view_is_found_for_any_name_and_moment(table: str, moment: str) -> None:
    name, text = table.replace('"', '""'), moment.replace("'", "''")
    found = parse_statement(f"FROM \"{name}\" AT '{text}'")
    assert found.clauses == (TableAtClause(table.lower(), moment),)
    with duckdb.connect() as con:
        schema, view = found.sql.removeprefix("FROM ").split('"."')
        con.execute(f'CREATE SCHEMA {schema}"')
        con.execute(f'CREATE VIEW {schema}"."{view} AS SELECT 7 AS found')
        assert con.sql(found.sql).fetchall() == [(7,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 AT '-1h'",
        "FROM inflight('by-tail') AT '-1h'",
        "FROM main.routes AT '-1h'",
        "AT '-1h'",
        "FROM versions('r', 1)",
        "FROM versions('r',)",
        "FROM versions('r' '-1h')",
        "FROM versions('a', 'b', 'c', 'd', 'e')",
        "FROM versions('r'",
    ],
)
def test_a_malformed_clause_is_refused_with_the_right_form(sql: str) -> None:
    with pytest.raises(Usage) as caught:
        parse_statement(sql)
    assert "write " in caught.value.hint


ENDS = st.lists(
    st.sampled_from((" ", "\n", ";", "-- ; c\n", "/* c /* ; 'n */ \" */", "--\n", "\t", "/**/")), max_size=6
)
INSIDE = (
    "SELECT 1 AS a",
    "SELECT '-- no comment' AS a /* c */ WHERE true",
    "WITH w AS (SELECT 1 AS a -- c\n) FROM w",
    "SELECT $$;$$ AS a",
    "(SELECT 1 AS a)",
)


@given(st.sampled_from(INSIDE), ENDS, ENDS, st.sampled_from(("", "-- last", "; -- last ;", "/* last */;")))
def test_a_statement_without_its_comments_and_semicolons_can_be_a_subquery(
    sql: str, before: list[str], behind: list[str], last: str
) -> None:
    around = "".join(part for part in before if part != ";")
    inner = strip_comments(f"{around}{sql}{''.join(behind)}{last}")
    assert inner == sql
    with duckdb.connect() as con:
        assert con.sql(f"SELECT count(*) FROM ({inner}) t").fetchall() == [(1,)]


@pytest.mark.parametrize("sql", ["", ";", " -- c", "/* ; */ ;;"])
def test_nothing_remains_of_comments_alone(sql: str) -> None:
    assert strip_comments(sql) == ""
