"""`slackwater attach`: the state of a running query of Spark, one version a batch, without touching it."""

from ...errors import Usage
from ..options import CONF, DRY_RUN, argument, flag, option, span
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
