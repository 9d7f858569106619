"""The simulated app, whose tables and sinks show each record that was lost or counted twice.

`entries` sends each record on, by account and by group. `accounts` counts the records of each account and emits each
record; `groups` counts the records of each group over two channels; the sink `copies` gets each record of `entries`.
"""

import json

import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw

TOPIC, COPIES = "events", "copies"
ROWS = pa.schema([("token", pa.int64()), ("square", pa.int64()), ("account", pa.string()), ("section", pa.string())])
TOTALS = pa.schema([("records", pa.int64()), ("tokens", pa.int64()), ("squares", pa.int64())])
SECRET, SECRET_SECTION = "secret-person", "secret-section"
EDIT = 1_000_000
"""Number that an edit adds to the tokens of a key."""


def record(token: int, accounts: int = 7) -> bytes:
    return json.dumps({"token": token, "account": f"a{token % accounts}", "section": f"s{token % 3}"}).encode()


def secret_record(token: int) -> bytes:
    """Return a record of a person who will be forgotten."""
    return json.dumps({"token": token, "account": SECRET, "section": SECRET_SECTION}).encode()


def entries(events: pa.Table) -> pa.Table:
    values = [json.loads(value) for value in events["value"].to_pylist()]
    return pa.Table.from_pylist([{**value, "square": value["token"] ** 2} for value in values], ROWS)


def whole(rows: pa.Table) -> pa.Table:
    return rows


def count_and_emit(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    groups = rows.group_by("_key").aggregate([("token", "sum"), ("square", "sum"), ("token", "count")])
    groups = groups.sort_by("_key")
    added = {"records": groups["token_count"], "tokens": groups["token_sum"], "squares": groups["square_sum"]}
    new = {name: pc.add(pc.fill_null(state[name], 0), values) for name, values in added.items()}
    return pa.table(new, TOTALS), rows.select(ROWS.names)


def ledger(name: str = "ledger", *, is_next: bool = False, **options: object) -> sw.App:
    """Return the app; with `is_next`, the program to which the app is migrated: its `sections` has one more column."""
    app = sw.App(name)
    by_account, by_section = (
        sw.repartition("by-account", "account", partitions=2),
        sw.repartition("by-section", "section", partitions=2),
    )
    direct = sw.repartition("direct", "section", partitions=2)
    more = {"largest": sw.max("token")} if is_next else {}
    totals = sw.aggregate(records=sw.count(), tokens=sw.sum("token"), squares=sw.sum("square"), **more)
    app.stage(reads=sw.topic(TOPIC), writes=(by_account, direct, sw.sink(COPIES, key="token")), **options)(entries)
    counted = sw.update(count_and_emit, state=TOTALS, emits=ROWS)
    app.stage(
        reads=by_account, writes=by_section, state=counted, name="accounts", table=sw.table(partitions=4), **options
    )(whole)
    app.stage(
        reads=(by_section, direct),
        state=totals,
        name="sections",
        table=sw.table(partitions=2, compaction=sw.universal(l0_trigger=2)),
        **options,
    )(both)
    return app


def both(first: pa.Table, second: pa.Table) -> pa.Table:
    return pa.concat_tables([first, second])
