"""`slackwater.App`: an app as a program declares it, which runs in this process, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .common.argument_types import checked_methods
from .common.durations import parse_ms
from .pipeline.api import app as declared

if TYPE_CHECKING:
    from .pipeline.batch.batch_report import BatchReport


@checked_methods
class App(declared.App):
    """A streaming application: stages joined by repartition topics.

    Example:
        >>> app = App("flights")
        >>> @app.stage(reads=topic("flights"), writes=repartition("by-route", key=["origin", "dest"]))
        ... def legs(flights): return flights.selectExpr("cast(value as string) as json")
    """

    __slots__ = ()

    def run(
        self,
        *,
        store: str | None = None,
        kafka: str | Mapping[str, str] | None = None,
        stages: Sequence[str] = (),
        until_caught_up: bool = False,
        max_records: int | None = None,
        trigger: str | None = None,
        max_unflushed: int | None = None,
        accept_loss: bool = False,
        gc: str = "1h",
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        py_files: Sequence[str] = (),
        patience_s: float = 120,
        on_commit: Callable[[BatchReport], None] = lambda _report: None,
    ) -> None:
        """Run the app in this process, from where it stopped, as `slackwater run` does from a file.

        It returns once it has caught up, if so asked, or after Ctrl-C or SIGTERM, with what was read committed.

        Args:
            store: The store root: `s3://bucket/prefix`, or a folder. Default, as for the command line: the environment,
                then the nearest `slackwater.toml`, where all other settings come from too.
            kafka: The brokers, as `"host:port"`, or librdkafka's client properties, `bootstrap.servers` among them;
                default likewise.
            stages: Run only these; default all.
            until_caught_up: Return when each stage has read its topics up to where they end now, and all that followed
                from it through repartition topics, as `availableNow` in Structured Streaming.
            max_records: At most so many records of each input a batch, whatever the stages say.
            trigger: Shortest time between two batches, likewise: `"10 seconds"`.
            max_unflushed: How many versions a stage may run ahead of its last commit, likewise; 0 for none.
            accept_loss: Go on without records that are gone from Kafka.
            gc: Collect garbage so often, if `[retention]` has rules; `"off"` for never.
            master: Spark's master URL; default a session that runs here already, else what Spark is configured to.
            spark_conf: Further settings of Spark.
            py_files: Paths of Python files and zips that the program and its tasks import.
            patience_s: How long a broker or a store may be away, in seconds.
            on_commit: Told of each committed batch, from several threads.

        Raises:
            NotFound: A topic or a stage is not there.
            Refused: The program does not fit what is stored, or a stage failed.
            Fenced: A newer runner took a stage over.
            Unavailable: Kafka or the store was away for longer than `patience_s`.
            Usage: An argument, a setting, or what the app declares, is not one that could work.
        """
        # It takes a while to import.
        from .pipeline.listener import Callbacks
        from .pipeline.run.options import gc_every_ms
        from .pipeline.run.program import run_app
        from .settings import load

        settings = load(store=store, kafka=kafka if isinstance(kafka, str) else None)
        options = replace(
            settings.run_options(kafka if isinstance(kafka, Mapping) else None),
            stages=tuple(stages),
            until_caught_up=until_caught_up,
            max_records=max_records,
            trigger_ms=None if trigger is None else parse_ms("trigger", trigger),
            max_unflushed=max_unflushed,
            accept_loss=accept_loss,
            gc_every_ms=gc_every_ms("gc", gc),
            master=master,
            spark_conf=dict(spark_conf or {}),
            py_files=tuple(py_files),
            patience_s=patience_s,
        )
        run_app(self, options, Callbacks(committed=on_commit))
