"""What a program changes of a table's columns, and what is refused with the way to do it."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import NotFound, Refused, SlackwaterError
from slackwater.snapshot.migrate.columns import check_default, evolve, likely_renames
from slackwater.snapshot.migrate.kinds import differences, may_become, meaning_of, with_internal
from slackwater.snapshot.migrate.words import of_column
from slackwater.store.sst.arrow_types import to_arrow
from slackwater.store.sst.evolution import default_of
from slackwater.store.versions.manifest import Column, Table, Ttl

AGGREGATES = Table(
    (Column("country", "string"),),
    (
        Column("orders", "int64"),
        Column("price", "double"),
        Column("_price_sum", "decimal128(38, 2)"),
        Column("_price_count", "int64"),
        Column("largest", "int32"),
    ),
    4,
    "aggregate(orders=count(), price=mean(cents), largest=max(cents))",
)


def aggregates(state: str, *values: Column) -> Table:
    return replace(AGGREGATES, state=f"aggregate({state})", values=values)


def test_an_aggregate_that_is_renamed_takes_its_internal_columns_along() -> None:
    declared = aggregates(
        "orders=count(), mean_price=mean(cents), largest=max(cents), late=count(late)",
        Column("orders", "int64"),
        Column("mean_price", "double"),
        Column("_mean_price_sum", "decimal128(38, 2)"),
        Column("_mean_price_count", "int64"),
        Column("largest", "int64"),
        Column("late", "int64"),
    )
    table, changes = evolve("countries", AGGREGATES, declared, {"price": "mean_price"})
    assert table.ids == (1, 2, 3, 4, 5, 6, 7)
    assert (table.schema, table.next_id, table.partitions) == (1, 8, 4)
    assert [(each.kind, each.column) for each in changes] == [
        ("renamed", "mean_price"),
        ("widened", "largest"),
        ("added", "late"),
    ]
    assert [of_column(each) for each in changes] == [
        "~ price is called mean_price",
        "~ largest is int64, until now int32",
        "+ late int64 = count(late), from here on; rows from before have null",
    ]
    # Without a word about the name, it is a new one, and the old one goes: that may be a mistake.
    table, changes = evolve("countries", AGGREGATES, declared, {})
    assert [each.kind for each in changes] == ["added", "widened", "added", "removed"]
    assert likely_renames(changes) == (("price", "mean_price"),)


def test_what_is_declared_as_it_is_stored_changes_nothing() -> None:
    declared = replace(AGGREGATES, partitions=9)
    assert evolve("countries", AGGREGATES, declared, {}) == (AGGREGATES, ())
    migrated, _ = evolve(
        "countries", AGGREGATES, replace(declared, values=AGGREGATES.values[:1], state="aggregate(orders=count())"), {}
    )
    again = replace(
        migrated, values=tuple(Column(each.name, each.type) for each in migrated.values), key=AGGREGATES.key
    )
    assert evolve("countries", migrated, again, {}) == (migrated, ())


@pytest.mark.parametrize(
    ("declared", "renames", "error", "said", "way"),
    [
        (
            replace(AGGREGATES, key=(Column("city", "string"),)),
            {},
            Refused,
            "its key is .city string., and the stored table has .country string.",
            "--rename country=city",
        ),
        (replace(AGGREGATES, key=(Column("country", "int64"),)), {}, Refused, "its key is .country int64.", "new name"),
        (
            replace(AGGREGATES, state="update"),
            {},
            Refused,
            "its state is update now",
            "give the changed stage a new name",
        ),
        (
            replace(AGGREGATES, state="aggregate(orders=count(), price=mean(euros), largest=max(cents))"),
            {},
            Refused,
            "column 'price' is mean.euros. now, and what is stored is mean.cents.",
            "give it another name",
        ),
        (
            replace(AGGREGATES, values=(*AGGREGATES.values[:-1], Column("largest", "int16"))),
            {},
            Refused,
            "column 'largest' is int16 now, and what is stored is int32",
            "an integer may become a larger one",
        ),
        (
            AGGREGATES,
            {"prise": "price"},
            NotFound,
            "no column of table 'countries' named 'prise'; the nearest: price",
            "",
        ),
        (AGGREGATES, {"price": "prize"}, NotFound, "no column that the program declares .* the nearest: price", ""),
        (AGGREGATES, {"price": "orders"}, Refused, "has a column 'orders' already", "--rename orders=NAME"),
    ],
)
def test_what_would_mean_something_else_is_refused_with_the_way_to_do_it(
    declared: Table, renames: dict[str, str], error: type[SlackwaterError], said: str, way: str
) -> None:
    with pytest.raises(error, match=said) as refused:
        evolve("countries", AGGREGATES, declared, renames)
    assert way in refused.value.hint


def test_the_column_by_which_rows_expire_takes_its_ttl_along() -> None:
    stored = Table(
        (Column("k", "int64"),),
        (Column("at", "timestamp[us, tz=UTC]"), Column("n", "int64")),
        1,
        "update",
        Ttl(5, "at"),
    )
    declared = replace(
        stored, values=(Column("seen", "timestamp[us, tz=UTC]"), Column("n", "int64")), ttl=Ttl(9, "seen")
    )
    assert evolve("t", stored, declared, {"at": "seen"})[0].ttl == Ttl(9, "seen")
    with pytest.raises(Refused, match="its rows expire by column 'seen' now, but the stored ones by column 'at'"):
        evolve("t", stored, declared, {})
    gone, _ = evolve("t", stored, replace(stored, values=(Column("n", "int64"),), ttl=None), {})
    assert gone.ttl == Ttl(0, gone=True)
    # Rows from before have times by `at`: no other clock may judge them.
    for again in (Ttl(5), Ttl(5, "n")):
        with pytest.raises(Refused, match="expire by a column that it has no more"):
            evolve("t", gone, replace(gone, ttl=again), {})
    assert evolve("t", gone, replace(gone, ttl=None), {})[0].ttl == Ttl(0, gone=True)


@given(st.sampled_from(["int8", "int16", "int32"]), st.integers(-128, 127), st.sampled_from(["int32", "int64"]))
def test_a_default_stays_the_same_value_when_its_column_is_widened(kind: str, value: int, wider: str) -> None:
    stored = Table((Column("k", "int64"),), (), 1, "update")
    text = check_default("t", "n", value, to_arrow(kind))
    first, _ = evolve("t", stored, replace(stored, values=(Column("n", kind, default=text),)), {})
    if kind != wider:
        first, _ = evolve("t", first, replace(stored, values=(Column("n", wider),)), {})
    assert default_of(first.values[0]).as_py() == value


def test_a_float_default_keeps_what_a_float_had_of_it() -> None:
    stored = Table((Column("k", "int64"),), (), 1, "update")
    text = check_default("t", "n", 0.1, pa.float32())
    first, _ = evolve("t", stored, replace(stored, values=(Column("n", "float", default=text),)), {})
    second, _ = evolve("t", first, replace(stored, values=(Column("n", "double"),)), {})
    assert default_of(second.values[0]).as_py() == pa.scalar(0.1, pa.float32()).as_py()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("many", pa.int64()),
        (1.5, pa.int64()),
        (300, pa.int8()),
        (b"x", pa.binary()),
        ({"x": 1}, pa.struct([("x", pa.int8())])),
    ],
)
def test_a_default_of_the_wrong_type_is_refused(value: object, kind: pa.DataType) -> None:
    with pytest.raises(Refused, match="the default of column 'n' is") as refused:
        check_default("t", "n", value, kind)
    assert "defaults={'n': …}" in refused.value.hint


def test_aggregates_that_are_emitted_when_their_window_ends_change_as_others_do() -> None:
    due = Column("_due_at", "int64")
    stored = replace(AGGREGATES, values=(*AGGREGATES.values, due), state=f"final({AGGREGATES.state})")
    late = Column("late", "int64")
    declared = replace(
        stored, values=(*AGGREGATES.values, late, due), state=f"final({AGGREGATES.state[:-1]}, late=count(late)))"
    )
    table, changes = evolve("countries", stored, declared, {})
    assert [of_column(each) for each in changes] == [
        "+ late int64 = count(late), from here on; rows from before have null"
    ]
    assert table.ids == (1, 2, 3, 4, 5, 6, 8, 7)
    renamed = replace(
        stored,
        values=tuple(replace(each, name=each.name.replace("price", "mean")) for each in stored.values),
        state=stored.state.replace("price=", "mean="),
    )
    assert [each.kind for each in evolve("countries", stored, renamed, {"price": "mean"})[1]] == ["renamed"]
    for one, other, said in ((AGGREGATES, stored, "now, and had not"), (stored, AGGREGATES, "no more, and had")):
        with pytest.raises(Refused, match=f'emits="final". {said}: the rows of windows that are open') as refused:
            evolve("countries", one, other, {})
        assert "give the changed stage a new name" in refused.value.hint


def test_the_column_by_which_rows_fall_due_is_renamed_with_it() -> None:
    due = Column("_due_at", "int64")
    stored = Table((Column("k", "int64"),), (Column("until", "timestamp[us]"), due), 1, "update(due=until)")
    declared = replace(stored, values=(Column("ends", "timestamp[us]"), due), state="update(due=ends)")
    table, changes = evolve("t", stored, declared, {"until": "ends"})
    assert ([each.kind for each in changes], table.ids) == (["renamed"], (1, 2, 3))
    # Without a word about the name, rows keep the time that they had, and get the next by the new column.
    table, changes = evolve("t", stored, declared, {})
    assert ([each.kind for each in changes], table.ids) == (["added", "removed"], (1, 4, 3))
    assert list(differences(stored.state, declared.state)) == ["- due=until", "+ due=ends"]
    assert meaning_of("update(due=a, due_by=clock)", {"a": "b"}).due_text == "due=b, due_by=clock"


def test_a_join_gets_columns_and_stays_the_join_that_it_is() -> None:
    def joined(right: str = "list<struct<paid: int64>>", state: str = "") -> Table:
        values = (Column("orders", "list<struct<at: int64>>"), Column("payments", right), Column("_due_at", "int64"))
        stored = "join(orders, payments, within=3600000 ms, how=inner)"
        return Table((Column("number", "int64"),), values, 2, state or stored)

    table, changes = evolve("till", joined(), joined("list<struct<paid: int64, cents: int64>>"), {})
    assert ([each.kind for each in changes], table.ids) == (["widened"], (1, 2, 3, 4))
    with pytest.raises(Refused, match="column 'payments' is list<struct<at: int64>> now") as refused:
        evolve("till", joined(), joined("list<struct<at: int64>>"), {})
    assert "rename or cast them in the stage that reads" in refused.value.hint
    for other in (
        "join(orders, payments, within=5400000 ms, how=inner)",
        "join(orders, payments, within=3600000 ms, how=left)",
        "join(orders, refunds, within=3600000 ms, how=inner)",
        "join(payments, orders, within=3600000 ms, how=inner)",
    ):
        assert not may_become(joined().state, other)
        with pytest.raises(Refused, match=r"its state is join.* now, and what is stored is of join") as refused:
            evolve("till", joined(), joined(state=other), {})
        assert "orders, payments, within=1h, how=inner)" in refused.value.message
        assert "give the changed stage a new name" in refused.value.hint


def test_what_may_become_something_else_is_told_from_what_may_not() -> None:
    assert may_become("upsert(by=at)", "upsert(by=seen)")
    assert may_become("update", "update(due=until)")
    assert may_become("final(aggregate(n=count()))", "final(aggregate(m=count()))")
    assert not may_become("aggregate(n=count())", "final(aggregate(n=count()))")
    assert not may_become("aggregate(n=count())", "update")
    assert not may_become("sessions(final(aggregate(n=count())))", "sessions(final(aggregate(m=count())))")


def test_how_a_state_was_declared_says_what_its_columns_mean() -> None:
    state = "aggregate(n=count(), last_price=last(price, by=at), m=mean(a b))"
    assert meaning_of(state, {"m": "mm"}).columns == {
        "n": "count()",
        "last_price": "last(price, by=at)",
        "mm": "mean(a b)",
    }
    assert meaning_of("upsert(by=at, delete_when=gone)", {"at": "seen"}).kind == "upsert(by=seen, delete_when=gone)"
    # Text that no aggregate writes is nothing but itself.
    assert meaning_of("aggregate(a=b=count())x", {}).kind == "aggregate(a=b=count())x"
    assert with_internal("update", {"a": "b"}) == {"a": "b"}
    assert list(differences("aggregate(n=count())", "aggregate(n=count(), m=max(x))")) == ["+ m = max(x)"]
