"""Verbs that show the state and history of an app: status, log, history, diff, verify."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ...client.declared.operations import LookOptions
from ...client.declared.questions import DiffOptions, OperationsOptions
from ...common import runtime
from ...common.durations import HOUR_MS
from ...errors import Usage
from ..options import (
    APP,
    FORGOTTEN_KEY,
    KEY,
    REF,
    TABLE,
    Repeated,
    argument,
    duration_option,
    flag,
    option,
    parse_key_words,
    parse_keys,
)
from ..quick import skip_user_code_setup
from ..session import Session, name_of_app, throttle, verb

if TYPE_CHECKING:
    from ...client import Client
    from ...client.moment import Moment


@verb(
    "slackwater status",
    "slackwater status flights --watch",
    "slackwater status flights --cost --since 1d          # requests, bytes, and S3's bill for a month",
    "slackwater status flights --json | jq '.[].stages[].inputs[].lag'",
    kafka=True,
)
def status(
    session: Session,
    app_name: str | None = argument("APP", "Only this app. Default: all in the store.", None),
    watch: bool = flag("--watch", "Refresh until Ctrl-C."),
    every: int = duration_option("How often --watch refreshes. Default: 2s.", 2000, min_ms=100, bare_seconds=True),
    cost: bool = flag("--cost", "Show requests, stored bytes and the estimated monthly S3 cost instead."),
    since: int | None = duration_option("With --cost: measure over this time. Default: 1h."),
) -> None:
    """Show the state and the lag of every stage.

    With one app, also shows its tables and partitions. Without Kafka, the lag of your topics is `?`.
    """
    from ...client import status as of

    if cost and watch:
        raise Usage("--cost and --watch exclude each other")
    if since is not None and not cost:
        raise Usage("--since needs --cost")
    if cost:
        session.show(of.cost(session.client, app_name, HOUR_MS if since is None else since))
        return
    with session.live() if watch else nullcontext(session.show) as show:
        while True:
            show(of.status(session.client, app_name))
            if not watch:
                break
            runtime.sleep(every / 1_000)


@verb(
    "slackwater log flights",
    "slackwater log flights --stage carriers --limit 5",
    "slackwater log flights --operations",
    kafka=True,
)
def log(
    session: Session,
    app_name: str = APP,
    limit: int = option("N", "Maximum number shown; 0 shows all.", 20, min=0),
    stage: str = option("NAME", "Only this stage.", ""),
    operations: bool = flag("--operations", "Show operations by people (who, when, why) instead of commits."),
    **filters: Unpack[OperationsOptions],
) -> None:
    """Show the commits of an app, newest first.

    Shows each commit's rows, the offsets it read (end exclusive), its snapshots, and whether it can be restored; if
    Kafka is known, also whether it can be replayed from Kafka or the input archive.
    """
    skip_user_code_setup()
    from ...client import status as of

    if operations:
        session.show(session.app(app_name).operations(limit, **filters))
    elif any(filters.values()):
        raise Usage("--by, --verb, --since and --until need --operations")
    else:
        session.show(of.log(session.client, name_of_app(app_name), limit, stage=stage))


@verb(
    "slackwater history flights/carriers UA",
    "slackwater history flights/aircraft N14228 --limit 0 --json",
    """slackwater history shop/baskets '{"country": "DE", "number": 17}'""",
)
def history(
    session: Session,
    table_name: str = TABLE,
    key: list[str] = KEY,
    limit: int = option("N", "Maximum changes shown; 0 shows all.", 20, min=0),
    verbose: bool = flag("--verbose", "Also show bytes read and requests.", "-v"),
) -> None:
    """Show each change of one key's row, newest first.

    Shows each change's version, the offsets that the version read, and the values before and after. Includes expiry.
    `slackwater why` names the records.
    """
    from ...client.show.history import key_history_result as shown

    app, table = session.table(table_name, key)
    key_history = app.history(table, parse_key_words(key), limit=limit).full_history
    session.show(shown(key_history, " ".join(key), limit=limit, verbose=verbose))


@verb(
    "slackwater diff flights@-1h flights",
    "slackwater diff flights/carriers@v12 flights/carriers@v13 --table carriers",
    "slackwater diff flights@before-deploy flights-staging --stat",
    "slackwater diff flights@-1d flights --table carriers --out changed.parquet",
    declared_first=True,
)
def diff(
    session: Session,
    before: str = argument("A", "The first moment, a ref."),
    after: str = argument("B", "The second moment, of the same or another app."),
    stat: bool = flag("--stat", "Only count the differing rows."),
    keys: bool = flag("--keys", "Only show the keys of differing rows."),
    out: Path | None = option("FILE", "Write all differing rows to a .parquet, .csv or .json file."),
    to: str | None = option("ROOT", "Store root of B. Default: A's."),
    **options: Unpack[DiffOptions],
) -> None:
    skip_user_code_setup()
    from ...client.show import values
    from ...client.show.history import diff_result as shown

    if stat and keys:
        raise Usage("--stat shows no keys, so --stat and --keys exclude each other", hint="omit one of them")
    if out is not None:
        values.check_ending(out)

    def read(client: "Client", ref: str) -> "tuple[Moment, str]":
        names_table = "/" in ref.partition("@")[0]
        return client.moment_of_table(ref, "compared") if names_table else (client.moment(ref, "compared"), "")

    (second_moment, second), (first_moment, first) = (
        read(session.client.at_root(to), after),
        read(session.client, before),
    )
    # Refs of two different stages, or of a stage without a table, only name moments.
    named = {first, second} & {*first_moment.cut.tables, *second_moment.cut.tables}
    options["table"] = options["table"] or (named.pop() if len(named) == 1 else "")
    difference = first_moment.diff(second_moment, **options)
    if out is not None:
        values.write_table(values.stack_diffs(difference.full_diffs), out)
    session.show(
        shown(
            difference.refs, difference.cuts, difference.full_diffs, with_rows=not stat, with_values=not keys, out=out
        )
    )


@verb(
    "slackwater verify flights@before-deploy",
    "slackwater verify flights@before-deploy --deep   # every byte, every row, the whole history",
    "slackwater verify flights --json                 # all differences, for machines",
    "slackwater verify flights/aircraft N14228 --forgotten --deep",
    kafka=True,
    declared_first=True,
)
def verify(
    session: Session,
    ref: str = REF,
    words: list[str] = argument("KEY", "With --forgotten: a key of APP/TABLE, written as for get.", []),
    forgotten: bool = flag("--forgotten", "Instead, check that no object of the app holds these forgotten keys."),
    key: Repeated = FORGOTTEN_KEY,
    **options: Unpack[LookOptions],
) -> None:
    """Verify that a moment is consistent, complete and undamaged.

    Checks that records between stages are consumed or in flight, versions follow each other, and objects are present.
    Read-only. Exits with 1 at any difference.

    --forgotten checks instead that no object of the app and its clones, at any version, holds the given keys. It
    also exits with 1 if records cannot be decoded.
    """
    from ...client.show.status import verification_result

    if forgotten != bool(key or options["files"] or words):
        raise Usage(
            "--forgotten needs a key, as APP/TABLE KEY, --key TABLE=KEY, or --keys FILE: the store has no record "
            "of the forgotten keys"
        )
    if forgotten:
        keys = parse_keys(ref, words, key or [], options["files"])
        with session.progress() as progress:
            session.show(session.app(ref).verify_forgotten(keys, on_progress=throttle(progress), **options))
        return

    with session.progress() as progress:
        report = session.app(ref).verify(ref, deep=options["deep"], on_progress=throttle(progress))
    session.show(verification_result(report))
