"""`slackwater trial`: run a changed program on production's past input, and compare."""

from pathlib import Path
from typing import Unpack

from ...client.declared.operations import TrialOptions
from ..options import APP, CONF, PY_FILES, Repeated, flag, option
from ..session import Session, verb


@verb(
    "slackwater trial flights --code flights.py --from flights@-1d",
    "slackwater trial flights --code new.py --before old.py --from flights@mon --to flights@tue --report trial.html",
    'slackwater trial flights --code new.py --from flights@-1h --allow "FROM carriers WHERE after_delay = 0"',
    kafka=True,
)
def trial(
    session: Session,
    app_name: str = APP,
    code: Path = option("FILE", "The changed program.", ..., exists=True, dir_okay=False),
    start: str = option("REF", "Start of the input to replay.", ..., name="--from"),
    to: str = option("REF", "End of the input to replay. Default: now.", ""),
    before: Path | None = option(
        "FILE",
        "The old program: compare with its results on the same input, instead of with the app's tables.",
        exists=True,
    ),
    report: Path | None = option("FILE", "Write a report as one .html file, with values hidden."),
    md: Path | None = option("FILE", "Write the report as Markdown, for a pull request."),
    show_values: bool = flag("--show-values", "Show values of rows, here and in the reports."),
    master: str | None = option("URL", "Spark master. Default: all cores of this machine."),
    conf: Repeated = CONF,
    py_files: Repeated = PY_FILES,
    **options: Unpack[TrialOptions],
) -> None:
    from ...client.searches import Reports
    from ...pipeline.spark.conf import parse_settings

    reports = Reports(report, md, show_values, also_on_terminal=True)
    reports.check()
    with session.progress() as progress:
        result = session.app(app_name).trial(
            code,
            start=start,
            end=to,
            before=before,
            reports=reports,
            show_values=show_values,
            master=master,
            spark_conf=parse_settings(conf or ()),
            py_files=[file for files in py_files or () for file in files.split(",")],
            on_progress=progress,
            **options,
        )
    session.show(result)
