"""Verbs about queries of Spark: the state of one that runs, one version a batch; one that becomes a stage."""

import os
from functools import partial
from typing import Any

from ...errors import Usage
from ..options import CONF, DRY_RUN, Many, argument, flag, option, span
from ..session import Session, verb


@verb(
    "slackwater attach /checkpoints/totals --app shop --dry-run",
    "slackwater attach /checkpoints/totals --app shop          # beside the query, which knows nothing of it",
    "slackwater attach s3://bucket/checkpoints/totals --app shop --stage countries --once",
    changes=True,
)
def attach(
    session: Session,
    checkpoint: str = argument("CHECKPOINT", "The checkpoint of a query of Spark: a folder, or what Spark reads."),
    app_name: str = option("APP", "Name of the app that its state becomes.", ..., name="--app"),
    stage: str = option("STAGE", "Name of the stage, and of its table. Default: that of the checkpoint's folder.", ""),
    once: bool = flag("--once", "Read what there is now, and end."),
    every: int = span("How often to look for a new batch. Default 1s.", 1_000, name="--every", least_ms=100),
    partitions: int = option("N", "State partitions of tables that are new.", 4, min=1),
    master: str | None = option("URL", "Master of the Spark that reads. Default: all cores of this machine."),
    conf: list[str] = CONF,
    dry_run: bool = DRY_RUN,
) -> None:
    """Follow a query of Spark by its checkpoint: each of its batches becomes a version of an app.

    The query goes on unchanged, and nothing is written into its checkpoint. From then on its state is an app like any
    other: query it at any moment, diff, bisect, watch, export. It begins with all history that the checkpoint has.
    Batches that were cleaned up before they were read are one version, which says so. Started again it goes on; started
    twice, the first one stops. Ctrl-C ends it.
    """
    from ...client import attaching
    from ...pipeline.run.stopping import stop_signals
    from ...pipeline.spark.conf import settings_of

    if once and dry_run:
        raise Usage("--once and --dry-run exclude each other")

    opening = attaching.tail_of(
        session.client,
        checkpoint,
        app_name,
        stage=stage,
        partitions=partitions,
        master=master,
        spark_conf=settings_of(conf or ()),
    )
    # The query goes first, where both are on one machine.
    os.nice(10)
    with stop_signals() as stop, stop.at_once():
        with session.progress() as progress:
            progress("starting Spark, which reads the checkpoint")
        with opening as tail:
            if once or dry_run:
                tell = session.show if not session.as_json else lambda _landed: None
                session.show(attaching.attached(session.client, tail, tell, dry_run=dry_run))
                return
            followed = attaching.follower(session.client, tail, session.show)
            followed.run(stop, every / 1_000, lambda error: session.note(f"{error.message}; trying again"))


@verb(
    "slackwater adopt /checkpoints/totals shop.py --stage totals --emit-program   # a declaration to begin with",
    "slackwater adopt /checkpoints/totals shop.py --stage totals --dry-run",
    "slackwater adopt /checkpoints/totals shop.py --stage totals --shadow         # beside the query, which goes on",
    "slackwater adopt /checkpoints/totals shop.py --stage totals                  # once it was stopped",
    "slackwater adopt /checkpoints/totals shop.py --stage totals --from-batch 8123",
    kafka=True,
    changes=True,
)
def adopt(
    session: Session,
    checkpoint: str = argument("CHECKPOINT", "The checkpoint of a query of Spark: a folder, or s3://bucket/prefix."),
    program: str = argument("PROGRAM", "Python file that declares the app."),
    stage: str = option("STAGE", "The stage that the query becomes.", ..., name="--stage"),
    app_name: str = option("NAME", "Adopt it into this app. Default: the program's name.", "", name="--app"),
    from_batch: int | None = option(
        "N", "Go on from the end of this batch, for example where a later one is damaged. Default: the newest.", min=0
    ),
    offsets: Many = option(
        "TOPIC=WHERE",
        "Where the stage goes on, for a topic that the query's offsets say nothing of; as for init. May be repeated.",
    ),
    attached: str = option("APP", "Take over the history of an app that followed the query, too.", ""),
    emit_program: bool = flag("--emit-program", "Write PROGRAM, which declares the stage, and end."),
    shadow: bool = flag("--shadow", "Compare the stage with the query, batch by batch, and adopt nothing."),
    batches: int | None = option("N", "With --shadow: end after so many batches. Default: by Ctrl-C.", min=1),
    master: str | None = option("URL", "Master of the Spark that reads. Default: all cores of this machine."),
    conf: list[str] = CONF,
    dry_run: bool = DRY_RUN,
) -> None:
    """Have a query of Spark go on as a stage: its state, its history and its offsets.

    Stop the query first. Its batches become the stage's first versions, with the columns that the program declares: all
    of them, or none. The state is compared with what Spark reads at the last batch. Then slackwater run goes on at the
    next offset. Whatever has no place in the declared table is named, column by column, and nothing is written. Broken
    off, the same call goes on. The checkpoint stays as it is.

    With --shadow, the query may run: each of its batches is run by the program, too, and the rows are compared.
    """
    from ...client import adopting
    from ...pipeline.run.stopping import stop_signals
    from ...pipeline.spark.conf import settings_of
    from ...results import adopted as shown

    if sum((emit_program, shadow, dry_run)) > 1:
        raise Usage("--emit-program, --shadow and --dry-run exclude each other")
    if batches is not None and not shadow:
        raise Usage("--batches goes with --shadow")
    settings: dict[str, Any] = {"master": master, "spark_conf": settings_of(conf or ())}
    starting = "starting Spark, which reads the checkpoint"
    query = adopting.query_of(checkpoint, program, stage, app_name, offsets or (), from_batch, attached)
    if not shadow:
        with session.progress() as progress:
            progress(starting)
            if emit_program:
                done = adopting.emit_program(query, **settings)
            else:
                tell = partial(progress, "")
                done = adopting.adopt(session.client, query, tell, dry_run=dry_run, **settings)
        session.show(done)
        return
    with stop_signals() as stop, stop.at_once():
        with session.progress() as progress:
            progress(starting)
        compared = 0
        with adopting.shadow_of(session.client, query, **settings) as beside:
            while not stop.is_set() and compared != batches:
                for batch in beside.round():
                    session.show(shown.shadowed(batch, beside.equal))
                    compared += 1
                    if stop.is_set() or compared == batches:
                        break
                else:
                    stop.wait(1.0)
