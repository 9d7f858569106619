"""Verbs that explain which records are in a row and which are missing: why, impact, reconcile, why-not."""

from pathlib import Path
from typing import Unpack

from ...client.backends import split_table_ref
from ...client.declared.questions import ImpactOptions, ReconcileOptions, WhyNotOptions, WhyOptions
from ..options import APP, KEY, TABLE_AT, argument, option, parse_key_words, program_option
from ..quick import skip_user_code_setup
from ..session import Session, check_names_table, verb

_CODE = program_option("The program that ran.")
_PROOF = program_option("Also replay batches with this program, where stored data does not prove a reason.", None)


@verb(
    "slackwater why flights/carriers UA --code flights.py",
    "slackwater why flights/carriers@v13 UA --payloads",
    "slackwater why flights/aircraft@-1h N14228 --minimal --json",
    kafka=True,
)
def why(
    session: Session,
    ref: str = TABLE_AT,
    key: list[str] = KEY,
    code: Path | None = _CODE,
    **options: Unpack[WhyOptions],
) -> None:
    """Show the records that made a row.

    Replays, on a local Spark, the batches that wrote the key's row since the key last had no row, and the upstream
    batches that sent their input, up to your topics. Compares each replay with the commit. The app is not touched.

    --minimal searches for the smallest set of these records that gives the row, by replays of all smaller sets. If
    there are too many sets, it finds a set from which no record can be left out, and says so.
    """
    from ...client.explain.result import explanation_result

    check_names_table(ref, key)
    app, table, moment = split_table_ref(ref)
    at = moment.removeprefix("@") or "now"
    with session.progress() as progress:
        explained = session.app(app).why(table, parse_key_words(key), at, code=code, on_progress=progress, **options)
    session.show(explanation_result(explained.full_explanation, payloads=options["payloads"]))


@verb(
    "slackwater impact flights 'flights[1]@49625' --code flights.py",
    "slackwater impact flights 'flights[1]@49625' --json | jq '.rows[].key'",
    kafka=True,
)
def impact(
    session: Session,
    app_name: str = APP,
    record: str = argument("RECORD", "Location of a record: TOPIC[PARTITION]@OFFSET, in quotes."),
    code: Path | None = _CODE,
    **options: Unpack[ImpactOptions],
) -> None:
    from ...client.explain.result import impact_result

    with session.progress() as progress:
        reached = session.app(app_name).impact(record, code=code, on_progress=progress, **options)
    session.show(impact_result(reached.full_impact))


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
    code: Path | None = _PROOF,
    **options: Unpack[ReconcileOptions],
) -> None:
    if code is None:
        skip_user_code_setup()
    from ...client.reconcile import result
    from ...client.show import values

    if out is not None:
        values.check_ending(out)
    app, name, moment = split_table_ref(table)
    at = moment.removeprefix("@") or "now"
    with session.progress() as progress:
        found = (
            session.app(app)
            .reconcile(name, theirs, at=at, limit=0 if out else limit, code=code, on_progress=progress, **options)
            .full_result
        )
    if out is not None:
        values.write_table(result.differences_table(found), out)
    session.show(result.reconciliation_result(found, out))


@verb(
    "slackwater why-not flights/carriers UA",
    "slackwater why-not flights/carriers UA --record 'flights[0]@1203' --code flights.py",
    "slackwater why-not flights/aircraft N101 --where \"value::VARCHAR LIKE '%cancelled%'\"",
    name="why-not",
    kafka=True,
)
def why_not(
    session: Session,
    table: str = TABLE_AT,
    key: list[str] = KEY,
    code: Path | None = _PROOF,
    **options: Unpack[WhyNotOptions],
) -> None:
    if code is None:
        skip_user_code_setup()
    from ...client.reconcile.result import absence_result

    check_names_table(table, key)
    app, name, moment = split_table_ref(table)
    at = moment.removeprefix("@") or "now"
    values = parse_key_words(key)
    with session.progress() as progress:
        found = session.app(app).why_not(name, values, at=at, code=code, on_progress=progress, **options)
    session.show(absence_result(found.full_result))
