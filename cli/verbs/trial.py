"""`slackwater trial`: a release tried on production's own traffic."""

from pathlib import Path
from typing import Unpack

from ...client.declared.operations import TrialOptions
from ..options import APP, CONF, PY_FILES, Many, flag, option
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
    start: str = option("REF", "The moment from which on its input is taken.", ..., name="--from"),
    to: str = option("REF", "The moment up to which. Default: now.", ""),
    before: Path | None = option(
        "FILE", "The program that ran: it works off the same input, to compare with.", exists=True
    ),
    report: Path | None = option("FILE", "Write what was found as one .html file, without the values."),
    md: Path | None = option("FILE", "Write it as Markdown, for a pull request."),
    show_values: bool = flag("--show-values", "Show the values of rows, here and in the files."),
    master: str | None = option("URL", "Spark's master. Default: all cores of this machine."),
    conf: Many = CONF,
    py_files: Many = PY_FILES,
    **options: Unpack[TrialOptions],
) -> None:
    from ...client.searches import Reports
    from ...pipeline.spark.conf import settings_of

    reports = Reports(report, md, show_values, alone=True)
    reports.check()
    with session.progress() as progress:
        found = session.app(app_name).trial(
            code,
            start=start,
            end=to,
            before=before,
            reports=reports,
            show_values=show_values,
            master=master,
            spark_conf=settings_of(conf or ()),
            py_files=[file for files in py_files or () for file in files.split(",")],
            on_progress=progress,
            **options,
        )
    session.show(found)
