"""A changed program for a stored app, and how Spark is started for it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..settings import load

if TYPE_CHECKING:
    from ..pipeline.api.app import App
    from ..pipeline.run.options import Options
    from .client import Client


def run_options(
    client: "Client", master: str | None, spark_conf: Mapping[str, str] | None, py_files: Sequence[str]
) -> "Options":
    """How Spark is started; with Kafka where the client knows it. Raises `Usage`."""
    # Spark's Python side takes a second or two.
    from ..pipeline.spark.conf import check_py_files, check_settings

    channels = client.channels()
    settings = load(store=client.root)
    return replace(
        settings.run_options(channels.kafka.properties if channels is not None else {}),
        master=master,
        spark_conf=check_settings(spark_conf or {}, "spark_conf"),
        py_files=check_py_files(py_files, "py_files"),
    )


def program_of(code: str | Path, app: str, options: "Options") -> "App":
    """The program of a file, as this app. Raises as `load_app`."""
    from ..pipeline.run.program import load_app
    from ..pipeline.spark.shipping import on_path

    on_path(options.py_files)
    return load_app(str(code), name=app)
