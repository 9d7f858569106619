"""Changes that a program may make to a table's columns. Others are refused, and the message names an alternative."""

import pyarrow as pa
import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import NotFound, Refused, SlackwaterError
from slackwater.snapshot.change.migrate import describe_column_change
from slackwater.state.fits import ANOTHER_STAGE, check_default, evolve, fit_table, likely_renames
from slackwater.state.kinds.aggregate import Aggregates
from slackwater.state.kinds.due import FinalKind
from slackwater.state.kinds.kind import Kind, kind_of
from slackwater.state.kinds.session import Sessions
from slackwater.state.kinds.update import Update
from slackwater.store.sst.arrow_types import to_arrow
from slackwater.store.sst.schema import default_value
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
    sw.aggregate(orders=sw.count(), price=sw.mean("cents"), largest=sw.max("cents")).stored,
)


def aggregates(state: Kind, *values: Column) -> Table:
    return replace(AGGREGATES, state=state.stored, values=values)


def test_a_renamed_aggregate_takes_its_internal_columns_along() -> None:
    declared = aggregates(
        sw.aggregate(orders=sw.count(), mean_price=sw.mean("cents"), largest=sw.max("cents"), late=sw.count("late")),
        Column("orders", "int64"),
        Column("mean_price", "double"),
        Column("_mean_price_sum", "decimal128(38, 2)"),
        Column("_mean_price_count", "int64"),
        Column("largest", "int64"),
        Column("late", "int64"),
    )
    table, changes = evolve("countries", AGGREGATES, declared, {"price": "mean_price"})
    assert table.column_ids == (1, 2, 3, 4, 5, 6, 7)
    assert (table.schema, table.next_id, table.partitions) == (1, 8, 4)
    assert [(each.kind, each.column) for each in changes] == [
        ("renamed", "mean_price"),
        ("widened", "largest"),
        ("added", "late"),
    ]
    assert [describe_column_change(each) for each in changes] == [
        "~ price is renamed to mean_price",
        "~ largest is int64, was int32",
        "+ late int64 = count(late), from now on; existing rows have null",
    ]
    # Without a word about the name, it is a new one, and the old one goes: that may be a mistake.
    table, changes = evolve("countries", AGGREGATES, declared, {})
    assert [each.kind for each in changes] == ["added", "widened", "added", "removed"]
    assert likely_renames(changes) == (("price", "mean_price"),)


def test_a_declaration_equal_to_the_stored_one_changes_nothing() -> None:
    declared = replace(AGGREGATES, partitions=9)
    assert evolve("countries", AGGREGATES, declared, {}) == (AGGREGATES, ())
    fit = fit_table("countries", AGGREGATES, declared, {})
    assert (fit.table, fit.columns, fit.is_redeclared, fit.same) == (AGGREGATES, (), False, True)
    # Their order, and nothing else.
    fit = fit_table("countries", AGGREGATES, replace(AGGREGATES, values=AGGREGATES.values[::-1]), {})
    assert (fit.columns, fit.is_redeclared, fit.same) == ((), True, False)
    migrated, _ = evolve(
        "countries", AGGREGATES, aggregates(sw.aggregate(orders=sw.count()), *AGGREGATES.values[:1]), {}
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
            "its key is now .city string., but the key of the stored table is .country string.",
            "--rename country=city",
        ),
        (
            replace(AGGREGATES, key=(Column("country", "int64"),)),
            {},
            Refused,
            "its key is now .country int64.",
            "new name",
        ),
        (
            replace(AGGREGATES, state=Update().stored),
            {},
            Refused,
            "its state is now update",
            "give the changed stage a new name",
        ),
        (
            aggregates(
                sw.aggregate(orders=sw.count(), price=sw.mean("euros"), largest=sw.max("cents")), *AGGREGATES.values
            ),
            {},
            Refused,
            "column 'price' is now mean.euros., but stored values are mean.cents.",
            "give it another name",
        ),
        (
            replace(AGGREGATES, values=(*AGGREGATES.values[:-1], Column("largest", "int16"))),
            {},
            Refused,
            "column 'largest' is now int16, but stored values are int32",
            "allowed: a larger integer",
        ),
        (
            AGGREGATES,
            {"prise": "price"},
            NotFound,
            "no column of table 'countries' named 'prise'; the nearest: price",
            "",
        ),
        (AGGREGATES, {"price": "prize"}, NotFound, "no column in the program's table .* the nearest: price", ""),
        (AGGREGATES, {"price": "orders"}, Refused, "already has a column 'orders'", "--rename orders=NAME"),
    ],
)
def test_a_change_of_meaning_is_refused_with_the_alternative(
    declared: Table, renames: dict[str, str], error: type[SlackwaterError], said: str, way: str
) -> None:
    with pytest.raises(error, match=said) as refused:
        evolve("countries", AGGREGATES, declared, renames)
    assert way in refused.value.hint


def test_a_renamed_ttl_column_keeps_its_ttl() -> None:
    stored = Table(
        (Column("k", "int64"),),
        (Column("at", "timestamp[us, tz=UTC]"), Column("n", "int64")),
        1,
        Update().stored,
        Ttl(5, "at"),
    )
    declared = replace(
        stored, values=(Column("seen", "timestamp[us, tz=UTC]"), Column("n", "int64")), ttl=Ttl(9, "seen")
    )
    assert evolve("t", stored, declared, {"at": "seen"})[0].ttl == Ttl(9, "seen")
    with pytest.raises(Refused, match="its rows expire by column 'seen', but stored rows by column 'at'"):
        evolve("t", stored, declared, {})
    gone, _ = evolve("t", stored, replace(stored, values=(Column("n", "int64"),), ttl=None), {})
    assert gone.ttl == Ttl(0, gone=True)
    # Rows from before have times by `at`: no other clock may judge them.
    for again in (Ttl(5), Ttl(5, "n")):
        with pytest.raises(Refused, match="expired by a column that was removed"):
            evolve("t", gone, replace(gone, ttl=again), {})
    assert evolve("t", gone, replace(gone, ttl=None), {})[0].ttl == Ttl(0, gone=True)


@given(st.sampled_from(["int8", "int16", "int32"]), st.integers(-128, 127), st.sampled_from(["int32", "int64"]))
def test_a_default_keeps_its_value_when_its_column_is_widened(kind: str, value: int, wider: str) -> None:
    stored = Table((Column("k", "int64"),), (), 1, Update().stored)
    text = check_default("t", "n", value, to_arrow(kind))
    first, _ = evolve("t", stored, replace(stored, values=(Column("n", kind, default=text),)), {})
    if kind != wider:
        first, _ = evolve("t", first, replace(stored, values=(Column("n", wider),)), {})
    assert default_value(first.values[0]).as_py() == value


def test_a_float_default_keeps_its_rounded_value_when_widened_to_double() -> None:
    stored = Table((Column("k", "int64"),), (), 1, Update().stored)
    text = check_default("t", "n", 0.1, pa.float32())
    first, _ = evolve("t", stored, replace(stored, values=(Column("n", "float", default=text),)), {})
    second, _ = evolve("t", first, replace(stored, values=(Column("n", "double"),)), {})
    assert default_value(second.values[0]).as_py() == pa.scalar(0.1, pa.float32()).as_py()


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


def test_aggregates_emitted_when_their_window_ends_change_like_others() -> None:
    due = Column("_due_at", "int64")
    kept = kind_of(AGGREGATES.state)
    assert isinstance(kept, Aggregates)
    more = Aggregates((*kept.made, ("late", sw.count("late"))))
    stored = replace(AGGREGATES, values=(*AGGREGATES.values, due), state=FinalKind(kept).stored)
    late = Column("late", "int64")
    declared = replace(stored, values=(*AGGREGATES.values, late, due), state=FinalKind(more).stored)
    table, changes = evolve("countries", stored, declared, {})
    assert [describe_column_change(each) for each in changes] == [
        "+ late int64 = count(late), from now on; existing rows have null"
    ]
    assert table.column_ids == (1, 2, 3, 4, 5, 6, 8, 7)
    renamed = replace(
        stored,
        values=tuple(replace(each, name=each.name.replace("price", "mean")) for each in stored.values),
        state=FinalKind(kept.renamed({"price": "mean"})).stored,
    )
    assert [each.kind for each in evolve("countries", stored, renamed, {"price": "mean"})[1]] == ["renamed"]
    for one, other, said in ((AGGREGATES, stored, "was added"), (stored, AGGREGATES, "was removed")):
        with pytest.raises(Refused, match=f'emits="final". {said}, so that rows of open windows') as refused:
            evolve("countries", one, other, {})
        assert "give the changed stage a new name" in refused.value.hint


def test_a_renamed_due_column_stays_the_due_column() -> None:
    due = Column("_due_at", "int64")
    stored = Table((Column("k", "int64"),), (Column("until", "timestamp[us]"), due), 1, Update("until").stored)
    declared = replace(stored, values=(Column("ends", "timestamp[us]"), due), state=Update("ends").stored)
    table, changes = evolve("t", stored, declared, {"until": "ends"})
    assert ([each.kind for each in changes], table.column_ids) == (["renamed"], (1, 2, 3))
    # Without a word about the name, rows keep the time that they had, and get the next by the new column.
    table, changes = evolve("t", stored, declared, {})
    assert ([each.kind for each in changes], table.column_ids) == (["added", "removed"], (1, 4, 3))
    assert list(kind_of(stored.state).differences(kind_of(declared.state))) == ["- due=until", "+ due=ends"]
    assert Update("a", "clock").renamed({"a": "b"}).due_text == "due=b, due_by=clock"


def test_a_join_may_get_columns_but_no_other_settings() -> None:
    stored = sw.join("orders", "payments", within="1 hour")

    def joined(right: str = "list<struct<paid: int64>>", state: Kind = stored) -> Table:
        values = (Column("orders", "list<struct<at: int64>>"), Column("payments", right), Column("_due_at", "int64"))
        return Table((Column("number", "int64"),), values, 2, state.stored)

    table, changes = evolve("till", joined(), joined("list<struct<paid: int64, cents: int64>>"), {})
    assert ([each.kind for each in changes], table.column_ids) == (["widened"], (1, 2, 3, 4))
    with pytest.raises(Refused, match="column 'payments' is now list<struct<at: int64>>") as refused:
        evolve("till", joined(), joined("list<struct<at: int64>>"), {})
    assert "rename or cast them in the next stage" in refused.value.hint
    for other in (
        sw.join("orders", "payments", within="90 minutes"),
        sw.join("orders", "payments", within="1 hour", how="left"),
        sw.join("orders", "refunds", within="1 hour"),
        sw.join("payments", "orders", within="1 hour"),
    ):
        assert not stored.may_become(other)
        with pytest.raises(Refused, match=r"its state is now join.*, but the stored state is join") as refused:
            evolve("till", joined(), joined(state=other), {})
        assert "orders, payments, within=1h, how=inner)" in refused.value.message
        assert "give the changed stage a new name" in refused.value.hint


def test_only_compatible_kinds_of_state_may_replace_each_other() -> None:
    n, m = sw.aggregate(n=sw.count()), sw.aggregate(m=sw.count())
    assert sw.upsert(by="at").may_become(sw.upsert(by="seen"))
    assert Update().may_become(Update("until"))
    assert FinalKind(n).may_become(FinalKind(m))
    assert not n.may_become(FinalKind(n))
    assert not n.may_become(Update())
    assert not Sessions(FinalKind(n)).may_become(Sessions(FinalKind(m)))


def test_the_stored_declaration_gives_the_meaning_of_columns() -> None:
    state = sw.aggregate(n=sw.count(), last_price=sw.last("price", by="at"), m=sw.mean("a b"))
    assert kind_of(state.stored).renamed({"m": "mm"}).columns == {
        "n": "count()",
        "last_price": "last(price, by=at)",
        "mm": "mean(a b)",
    }
    upsert = sw.upsert(by="at", delete_when="gone")
    assert str(kind_of(upsert.stored).renamed({"at": "seen"})) == "upsert(by=seen, delete_when=gone)"
    assert Update().internal_renames({"a": "b"}) == {}
    more = sw.aggregate(n=sw.count(), m=sw.max("x"))
    assert list(sw.aggregate(n=sw.count()).differences(more)) == ["+ m = max(x)"]


@pytest.mark.parametrize(
    "state",
    [
        sw.aggregate(n=sw.count(), m=sw.last("x", by="at")),
        sw.upsert(by="at"),
        sw.join("a", "b", within="1 hour", how="left"),
        Update("until", "clock"),
        Sessions(FinalKind(sw.aggregate(n=sw.count()))),
    ],
)
def test_a_declaration_is_the_same_after_it_was_stored(state: Kind) -> None:
    assert kind_of(state.stored) == state
    assert str(kind_of(state.stored)) == str(state)


@pytest.mark.parametrize(
    "stored",
    [{}, {"kind": "of old"}, {"kind": "upsert"}, {"kind": ["upsert"]}, {"kind": "final", "state": 5}, {"kind": ""}],
)
def test_an_unknown_stored_declaration_is_kept_and_compatible_with_nothing(stored: dict[str, object]) -> None:
    found = kind_of(stored)
    assert found.stored == stored
    assert not found.may_become(found)
    assert not found.is_compatible_with(Update())


def test_a_stage_that_gets_or_loses_its_state_is_refused_with_a_hint() -> None:
    for stored, declared, change in (
        (None, AGGREGATES, "now keeps state, but stored none"),
        (AGGREGATES, None, "no longer keeps state, but has stored some"),
    ):
        refused = fit_table("countries", stored, declared, {}).refused
        assert refused is not None
        assert (refused.message, refused.hint) == (f"stage 'countries' {change}", ANOTHER_STAGE)
    assert fit_table("countries", None, None, {}).same


def test_two_columns_cannot_be_renamed_to_one() -> None:
    declared = aggregates(sw.aggregate(sales=sw.count()), Column("sales", "int64"))
    with pytest.raises(Refused, match="two columns of table 'countries' cannot both be renamed to 'sales'"):
        evolve("countries", AGGREGATES, declared, {"orders": "sales", "largest": "sales"})


def test_renaming_a_column_keeps_the_order_column_of_an_upsert() -> None:
    declared = sw.upsert(by="at", delete_when="gone")
    assert declared.renamed({"cents": "amount"}) == declared
    assert declared.renamed({"at": "time"}) == sw.upsert(by="time", delete_when="gone")


def test_only_a_column_added_to_an_aggregate_has_a_meaning() -> None:
    stored = Table((Column("k", "string"),), (Column("at", "int64"),), 1, sw.upsert(by="at").stored)
    declared = replace(stored, values=(*stored.values, Column("name", "string")))
    (added,) = fit_table("latest", stored, declared, {}).columns
    assert (added.kind, added.column, added.meaning) == ("added", "name", "")


def test_without_its_ttl_column_no_row_gets_an_expiry_time() -> None:
    stored = replace(AGGREGATES, ttl=Ttl(5, column="orders"))
    declared = aggregates(sw.aggregate(largest=sw.max("cents")), Column("largest", "int32"))
    assert evolve("countries", stored, declared, {})[0].ttl == Ttl(0, gone=True)
