"""Verbs that explain what is not in a table: reconcile, why-not."""

from pathlib import Path
from typing import Unpack

from ...client.backends import split_table_ref
from ...client.declared.questions import ReconcileOptions, WhyNotOptions
from ..options import KEY, TABLE_AT, option, parse_key_words
from ..quick import skip_user_code_setup
from ..session import Session, check_names_table, verb


@verb(
    "slackwater reconcile flights/carriers --with warehouse.parquet --on carrier=code",
    "slackwater reconcile flights/carriers@-1d --with totals.csv --tolerance 0.01 --out differences.parquet",
    "slackwater reconcile flights/carriers --with \"SELECT * FROM 'totals/*.csv'\"",
    "slackwater reconcile flights/carriers --with flights-v2/carriers",
    kafka=True,
)
def reconcile(
    session: Session,
    table: str = TABLE_AT,
    theirs: str = option(
        "SOURCE", "Their rows: a file, a URL, a DuckDB query, or APP/TABLE[@MOMENT].", ..., name="--with"
    ),
    limit: int = option("N", "Maximum keys explained; 0 explains all.", 50, min=0),
    out: Path | None = option("FILE", "Explain all keys, and write them to a .parquet, .csv or .json file."),
    **options: Unpack[ReconcileOptions],
) -> None:
    skip_user_code_setup()
    from ...client.reconcile import result
    from ...client.show import values

    if out is not None:
        values.check_ending(out)
    app, name, moment = split_table_ref(table)
    at = moment.removeprefix("@") or "now"
    found = session.app(app).reconcile(name, theirs, at=at, limit=0 if out else limit, **options).full_result
    if out is not None:
        values.write_table(result.differences_table(found), out)
    session.show(result.reconciliation_result(found, out))


@verb(
    "slackwater why-not flights/carriers UA",
    "slackwater why-not flights/carriers UA --record 'flights[0]@1203'",
    "slackwater why-not flights/aircraft N101 --where \"value::VARCHAR LIKE '%cancelled%'\"",
    name="why-not",
    kafka=True,
)
def why_not(
    session: Session,
    table: str = TABLE_AT,
    key: list[str] = KEY,
    **options: Unpack[WhyNotOptions],
) -> None:
    skip_user_code_setup()
    from ...client.reconcile.result import absence_result

    check_names_table(table, key)
    app, name, moment = split_table_ref(table)
    at = moment.removeprefix("@") or "now"
    session.show(absence_result(session.app(app).why_not(name, parse_key_words(key), at=at, **options).full_result))
