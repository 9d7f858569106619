"""`slackwater.App`: declares a streaming app in a Python program, and runs it in the current process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .common.arguments import check_method_arguments
from .common.durations import parse_ms
from .common.extras import require_extras
from .pipeline.api import app as declared

if TYPE_CHECKING:
    from .pipeline.listener import BatchReport


@check_method_arguments
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
        """Run the app in this process; it continues where its last run stopped.

        The same as the command `slackwater run`. Returns when everything is read (with `until_caught_up`), or after
        Ctrl-C or SIGTERM; all input that was read is committed first.

        Args:
            store: Store root: `s3://bucket/prefix`, or a folder. Default, as for the command line: the environment,
                then the nearest `slackwater.toml`, which also supplies all other settings.
            kafka: Brokers as `"host:port"`, or librdkafka's client properties, including `bootstrap.servers`; default
                as for `store`.
            stages: Stages to run; default all.
            until_caught_up: Return when each stage has read its topics up to their current ends, and all resulting rows
                in repartition topics, like `availableNow` in Structured Streaming.
            max_records: Maximum number of records of each input per batch, for all stages.
            trigger: Minimum time between two batches, for all stages: `"10 seconds"`.
            max_unflushed: Maximum number of unflushed versions of a stage, for all stages; 0 for none.
            accept_loss: Continue even if Kafka has deleted records that were not read yet.
            gc: Interval of garbage collection, if `[retention]` has rules; `"off"` disables it.
            master: Spark's master URL; default an existing session of this process, else Spark's configuration.
            spark_conf: Further settings of Spark.
            py_files: Paths of Python files and zips that the program and its tasks import.
            patience_s: Time in seconds for which a broker or a store may be unavailable.
            on_commit: Called with each committed batch, from several threads.

        Raises:
            NotFound: A topic or a stage does not exist.
            Refused: The program does not fit the stored app, or a stage failed.
            Fenced: A newer runner took over a stage.
            Unavailable: Kafka or the store was unavailable for longer than `patience_s`.
            Usage: An argument, a setting or a declaration is invalid.
        """
        require_extras("spark", "running an app")
        # Imported here because it is slow.
        from .pipeline.listener import Callbacks
        from .pipeline.run.options import parse_gc_interval
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
            gc_every_ms=parse_gc_interval("gc", gc),
            master=master,
            spark_conf=dict(spark_conf or {}),
            py_files=tuple(py_files),
            patience_s=patience_s,
        )
        run_app(self, options, Callbacks(committed=on_commit))
