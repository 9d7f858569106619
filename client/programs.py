"""Programs and conditions that methods take: a changed program and its Spark, and what bisect is asked."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Usage
from ..search.predicate import Predicate
from ..search.programs import Function, Python
from ..search.session import Asked
from ..search.verdict import Guilty, Hop, Verdict
from ..store.objects.protocol import ObjectStore
from .connection import Connection

if TYPE_CHECKING:
    from ..pipeline.kafka.protocol import Kafka
    from ..pipeline.replay.program import Program
    from ..pipeline.run.options import Options


def run_options(
    client: Connection, master: str | None, spark_conf: Mapping[str, str] | None, py_files: Sequence[str]
) -> "Options":
    """How Spark is started; with Kafka where the client knows it. Raises `Usage`."""
    # Spark's Python side takes a second or two.
    from ..pipeline.spark.conf import check_py_files, check_settings

    channels = client.channels()
    return replace(
        client.settings.run_options(channels.kafka.properties if channels is not None else {}),
        store=client.root,
        master=master,
        spark_conf=check_settings(spark_conf or {}, "spark_conf"),
        py_files=check_py_files(py_files, "py_files"),
    )


def predicate_of(
    store: ObjectStore, app: str, where: str, check: str, table: str, python: Function | None = None, run: str = ""
) -> Predicate:
    """What says whether a moment is bad.

    Raises:
        Usage: nothing says it, or several do, or it is malformed.
        NotFound: there is no such table.
    """
    if python is None:
        asked = Asked(app, where=where, check=check, table=table, run=run)
        if not asked.by_hand:
            return asked.predicate(store)
    elif not (where or check or run):
        return Python(getattr(python, "__name__", "function"), python)
    raise Usage("say what is wrong by one of where=, check=, python= and run=")


def opened_program(client: Connection, app: str, code: str | Path, kafka: "Kafka") -> "AbstractContextManager[Program]":
    """The program of a file as this app, with Spark to replay it. Raises as `load_app` and `open_program`."""
    from ..pipeline.replay.program import open_program
    from ..pipeline.run.program import load_app

    return open_program(load_app(str(code), name=app), client.store, client.cache, kafka)


def record_behind(
    client: Connection,
    app: str,
    verdict: Verdict,
    code: str | Path,
    on_hop: Callable[[Hop], None] = lambda _hop: None,
) -> Guilty:
    """The input record behind a verdict: the commit is replayed with the program of a file. Raises as `find_record`."""
    # Spark's Python side takes a second or two.
    from ..pipeline.replay.record import find_record

    channels = client.known_channels("which have the records to replay")
    with opened_program(client, app, code, channels.kafka) as program:
        return find_record(program, verdict, verdict.predicate, on_hop)
