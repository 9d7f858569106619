"""`slackwater adopt`: a query of Spark that was stopped goes on as a stage."""

from functools import partial
from typing import Any

from ...errors import Usage
from ..options import CONF, DRY_RUN, Many, argument, flag, option
from ..session import Session, verb


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
