"""Fields whose values become a table's key, for each topic and channel, from lineage and declarations."""

import pytest
from slackwater.errors import NotFound, Refused, Usage
from slackwater.operations.key_search.key_fields import DeclaredFields, KeyFields
from slackwater.store.versions.column_types import FieldSource, Lineage
from slackwater.store.versions.manifest import Column, Input, Manifest, Output, Table

TABLE = Table((Column("who", "string"),), (Column("n", "int64"),), 1)


def stage(
    name: str, inputs: dict[str, str], lineage: dict[str, Lineage], *writes: str, table: Table | None = TABLE
) -> Manifest:
    """Return a stage. `inputs` has the writing stage of each input, or an empty text for a user's topic."""
    return Manifest(
        *("app", name, 1, 1, "w", 1, "claim"),
        inputs={each: Input(each, (0,), upstream) for each, upstream in inputs.items()},
        outputs={each: Output(each, (0,), (0,)) for each in writes},
        table=table,
        lineage=lineage,
    )


def of(input_: str, field: str = "", *by: str) -> tuple[FieldSource, ...]:
    return (FieldSource(input_, field, by),)


def fields(*stages: Manifest, declared: DeclaredFields | None = None, table: str = "people") -> KeyFields:
    heads = {each.stage: each for each in stages}
    return KeyFields(heads, {table: table}, declared or DeclaredFields())


def told(found: KeyFields, place: str) -> list[list[str]]:
    """Return, for each rule of a topic or channel, the fields of each key column with the functions applied to them."""
    return [
        [
            "|".join(
                " ".join((each.text, *each.functions, *each.key_functions, each.unknown_function)).strip()
                for each in some
            )
            for some in rule.columns
        ]
        for rule in found.rules_for(place)
    ]


def test_key_fields_are_traced_through_channels_to_topics_and_other_topics_have_none() -> None:
    parse = stage("parse", {"orders": ""}, {"by": {"who": of("orders", "$.user.id", "lower")}}, "by", table=None)
    people = stage("people", {"by": "parse"}, {"": {"who": of("by", "who")}})
    amounts = stage("amounts", {"transfers": ""}, {"": {"who": of("transfers", "$.to")}})
    found = fields(parse, people, amounts)
    assert told(found, "orders") == [["$.user.id lower"]]
    assert told(found, "by") == [["who"]]
    assert told(found, "transfers") == []
    found.check_fields_known("app", ["orders", "by", "transfers"])


def test_a_field_inside_a_channels_column_is_traced_below_the_columns_source() -> None:
    parse = stage("parse", {"orders": ""}, {"by": {"user": of("orders", "$.user")}}, "by", table=None)
    found = fields(parse, stage("people", {"by": "parse"}, {"": {"who": of("by", "user.id")}}))
    assert told(found, "by") == [["user.id"]]
    assert told(found, "orders") == [["$.user.id"]]


def test_other_channels_are_compared_by_columns_with_the_same_source_field() -> None:
    lineage = {"": {"who": of("orders", "$.id", "lower")}, "out": {"who": of("orders", "$.id", "lower"), "n": ()}}
    people = stage("people", {"orders": ""}, lineage, "out")
    raw = stage("raw", {"orders": ""}, {"raw": {"id": of("orders", "$.id"), "x": of("orders")}}, "raw", table=None)
    hashed = stage("hashed", {"orders": ""}, {"h": {"id": of("orders", "$.id", "sha2")}}, "h", table=None)
    upper = stage("upper", {"orders": ""}, {"u": {"id": of("orders", "$.id", "lower", "trim")}}, "u", table=None)
    others = stage("others", {"orders": ""}, {"o": {"cents": of("orders", "$.cents")}}, "o", table=None)
    found = fields(people, raw, hashed, upper, others)
    assert told(found, "out") == [["who"]]
    assert told(found, "raw") == [["id lower"]]
    assert told(found, "h") == [["id sha2"]]
    assert told(found, "u") == [["id trim"]]
    assert told(found, "o") == []
    found.check_fields_known("app", ["orders", "out", "raw", "h", "u", "o"])


def test_fields_known_only_to_the_program_are_refused_until_declared() -> None:
    python = stage("people", {"orders": ""}, {"": {"who": of("orders")}})
    with pytest.raises(
        Refused, match=r"only the program knows which field of topic 'orders' becomes people.who of app"
    ) as e:
        fields(python).check_fields_known("app", ["orders"])
    assert "--field people=FIELD" in e.value.hint
    fields(python).check_fields_known("app", [])  # of which nothing is stored
    for text in ("$.user.id", "orders:$.user.id"):
        known = fields(python, declared=DeclaredFields({"people": [text]}))
        known.check_fields_known("app", ["orders"])
        assert told(known, "orders") == [["$.user.id"]]
    other = fields(python, declared=DeclaredFields({"people": ["clicks:$.user.id"]}))
    with pytest.raises(Refused):
        other.check_fields_known("app", ["orders"])
    # Without lineage nobody knows anything.
    with pytest.raises(Refused):
        fields(stage("people", {"orders": ""}, {})).check_fields_known("app", ["orders"])
    function = stage("f", {"orders": ""}, {"f": {"x": of("orders")}}, "f", table=None)
    clear = stage("people", {"orders": ""}, {"": {"who": of("orders", "$.id")}})
    with pytest.raises(Refused, match="repartition topic 'f'"):
        fields(clear, function).check_fields_known("app", ["orders", "f"])


def test_declared_fields_apply_to_topics_of_the_table_and_elsewhere_only_with_a_topic_name() -> None:
    people = stage("people", {"orders": ""}, {"": {"who": of("orders", "$.id")}})
    amounts = stage("amounts", {"transfers": ""}, {"": {"who": of("transfers", "$.to")}})
    declared = DeclaredFields({"people": ["$.also", "transfers:$.from"], "amounts": ["$.x"]})
    found = fields(people, amounts, declared=declared)
    assert told(found, "orders") == [["$.id|$.also"]]
    assert told(found, "transfers") == [["$.from"]]
    declared.check(["people"], ["orders", "transfers"])
    with pytest.raises(NotFound, match="transfers"):
        declared.check(["people"], ["orders"])
    with pytest.raises(Usage, match="is not a field of a record"):
        DeclaredFields({"people": ["$.a["]}).check(["people"], [])


def test_each_of_several_key_columns_has_its_fields_and_a_constant_column_has_none() -> None:
    table = Table((Column("who", "string"), Column("side", "string"), Column("n", "int64")), (), 1)
    key = {"who": of("a", "$.id") + of("b", "$.user"), "side": (), "n": of("a", "$.n") + of("b", "key")}
    found = fields(stage("people", {"a": "", "b": ""}, {"": key}, table=table))
    assert told(found, "a") == [["$.id", "", "$.n"]]
    assert told(found, "b") == [["$.user", "", "key"]]
    # Of one input alone comes no whole key.
    key = {"who": of("a", "$.id"), "side": (), "n": of("b", "$.n")}
    assert told(fields(stage("people", {"a": "", "b": ""}, {"": key}, table=table)), "a") == []


def test_cyclic_lineage_terminates() -> None:
    one = stage("people", {"x": "two"}, {"": {"who": of("x", "who")}, "y": {"who": of("x", "who", "f")}}, "y")
    two = stage("two", {"y": "people"}, {"x": {"who": of("y", "who", "g")}}, "x", table=None)
    with pytest.raises(Exception, match="has too many fields"):
        fields(one, two).rules_for("x")
