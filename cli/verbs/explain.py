"""Verbs that explain rows and records by replays: why, impact."""

from pathlib import Path
from typing import Unpack

from ...client.declared.questions import ImpactOptions, WhyOptions
from ..options import APP, KEY, TABLE_AT, argument, parse_key_words, program_option
from ..session import Session, check_names_table, verb

_CODE = program_option("The program that ran.")


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

    Version by version, up to your topics: replays the batches that wrote the key's row since it last had none, and the
    batches upstream that sent what went into it, on a local Spark, and compares each with the commit. The app is not
    touched.

    --minimal searches the smallest set of these records that gives the row, by replays of all smaller sets; if there
    are too many, a set of which none can be left out. The answer says which.
    """
    from ...client.explain.result import explanation_result

    check_names_table(ref, key)
    app, _, _ = ref.partition("/")
    moment, table = session.client.moment_of_table(ref, "explained")
    at = moment.ref.partition("@")[2] or "now"
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
