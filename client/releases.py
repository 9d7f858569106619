"""`AppReleases`: methods of an app that release a changed program: migrate, trial and promote."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..common.arguments import check_method_arguments
from ..common.extras import require_extras
from ..errors import Usage
from ..operations.staging.promote import promote
from ..store.versions.apps import folder_of
from .clones import AppClones
from .declared.operations import MigrateOptions, PromoteOptions, TrialOptions
from .declared.questions import When
from .show import snapshots
from .show.shown import Result

if TYPE_CHECKING:
    from ..pipeline.run.options import Options
    from ..snapshot.change.migrate import Migrated
    from .searches import Reports


@check_method_arguments
class AppReleases(AppClones):
    """Methods of an app that migrate, try and promote a changed program."""

    def migrate(
        self,
        code: str | Path,
        *,
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        py_files: Sequence[str] = (),
        **options: Unpack[MigrateOptions],
    ) -> "Migrated":
        """Continue the app with a changed program on its stored state, atomically. No data is rewritten.

        Starts Spark, unless a session runs in this process, to read the program's columns.

        Args:
            code: the file of the changed program.
            master: Spark's master URL; default one thread of this machine.
            spark_conf: further settings of Spark.
            py_files: Python files and zips that the program imports.

        Returns:
            The changes (`plan.changes`), the versions that made them, and the snapshot of the moment before.

        Raises:
            Usage: an argument is invalid, or the program's declarations are invalid.
            NotFound: a rename names an unknown column or stage, or a new input needs Kafka and none is configured.
            Refused: the stored state does not fit the program, or another migration is in progress. Nothing changed.
        """
        require_extras("spark", "a migration")
        # Importing PySpark takes a second or two.
        from ..operations.program_changes import migrate_file

        how: dict[str, Any] = {"renames": options["rename"] or {}, "stages": options["rename_stage"] or {}}
        how |= {"options": self._run_options(master, spark_conf, py_files), "dry_run": options["dry_run"]}
        return migrate_file(str(code), app=self.name, **how)

    def trial(
        self,
        code: str | Path,
        *,
        start: When,
        end: When = "",
        before: str | Path | None = None,
        reports: "Reports | None" = None,
        show_values: bool = True,
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        py_files: Sequence[str] = (),
        on_progress: Callable[[str], None] = lambda _doing: None,
        **options: Unpack[TrialOptions],
    ) -> Result:
        """Run a changed program over the input that the app read between two moments, on a local Spark.

        Each query in `allow` returns keys whose differences are expected. The query reads the differences of a table
        under the table's name: the key columns, `change`, and `before_…` and `after_…` columns. Queries are checked
        before the run; only an error about a column that the changed program adds is found after the run, and makes
        the trial fail. `keys` is refused if a stage combines rows of several keys.

        Args:
            code: the file of the changed program.
            start: start of the input, a moment as `at` takes it.
            end: end of the input; default now.
            before: the file of the program that ran. It processes the same input, and its output is the baseline.
                Required if rows were in flight at `end`; without it, rows published to sinks are not compared.
            reports: files for the report.
            show_values: include the differing rows in the result.
            master: Spark's master URL; default all cores of this machine.
            spark_conf: further settings of Spark.
            py_files: Python files and zips that the programs import.
            on_progress: called with a line about the current step.

        Raises:
            Usage: a moment is malformed, `end` is not after `start`, a query in `allow` is wrong, or no Kafka is
                configured.
            NotFound: a moment or stage does not exist, or a query names an unknown column.
            Refused: the program does not fit, Kafka has deleted the records, rows are in flight at `end` and `before`
                is not given, or the name `keep` is taken.
            KeyboardInterrupt: Ctrl-C or SIGTERM stopped the trial. Nothing is compared, and the clone is removed.
        """
        require_extras("spark", "a trial")
        from ..operations.staging.trial import make_trial_plan, run_trial
        from ..operations.staging.trial_plan import Release, Sample
        from ..pipeline.listener import Callbacks
        from .show import programs, trials
        from .show.report import Mask

        client = self._client
        client.require_channels("to read the input")
        run_options = self._run_options(master, spark_conf, py_files)
        refs = self._ref(start), self._ref(end or "now")
        old = str(before) if before is not None else ""
        release = Release(
            self.name,
            str(code),
            *refs,
            before=old,
            keep=options["keep"],
            allow=tuple(options["allow"]),
            only=tuple(options["stages"]),
            sample=Sample.parse(options["keys"]) if options["keys"] else None,
            renames=options["rename"] or {},
            stages=options["rename_stage"] or {},
        )
        if options["dry_run"]:
            make_trial_plan(release, run_options)
            migration = self.migrate(code, rename=release.renames, rename_stage=release.stages, dry_run=True)
            return programs.migration_result(migration, str(code), dry_run=True)
        result = run_trial(release, run_options, client.cache, by=client.by, listener=Callbacks(on_progress))
        if reports is not None:
            reports.write_page(client, trials.trial_page(result, str(code), Mask(show_values)))
        return trials.trial_result(result, str(code), show_values=show_values)

    def promote(
        self, over: str = "", *, on_wait: Callable[[str], None] = lambda _line: None, **options: Unpack[PromoteOptions]
    ) -> Result:
        """Give this app another app's name and sinks (blue/green cut-over).

        Args:
            over: the name to take over. The app with this name must be the source of this clone, a clone of this app,
                or another clone of the same source.
            on_wait: called with a line about the progress of both apps.

        Raises:
            Usage: not exactly one of `over` and `back` is given, or no Kafka is configured.
            NotFound: the app does not exist.
            Refused: neither app is a clone of the other, and they have no common source; this app lacks a sink of the
                other app, never ran, or is stopped while the other runs; another promotion is in progress; or the two
                apps did not reach equal offsets in time. Nothing changed.
        """
        dry_run = options["dry_run"]
        if bool(over) == options["back"]:
            raise Usage("give either the app that gets the name, or --back, which returns it to its previous app")
        client, staging = self._client, self.called if over else ""
        loser = type(self)(client, folder_of(client.store, over), over) if over else self
        name = loser.called
        if "~" in name:
            raise Usage(f"{name} is the app that was replaced in a promotion", hint="promote over the name without ~")
        action = f"to promote {staging} over it" if staging else "to give the name back"
        channels = client.require_channels("to compare the offsets of both apps")
        done = promote(
            client.store,
            channels,
            name,
            staging,
            by=client.by,
            cache=client.cache,
            timeout_s=options["timeout_s"],
            dry_run=dry_run,
            check_allowed=lambda: loser._check_allowed(action, options),
            on_wait=on_wait,
        )
        if done.idle:
            called = staging or f"{name}~1"
            client.note(
                f"note: neither {name} nor {called} is running: nothing is published until one of them is started"
            )
        return snapshots.promotion_result(done, with_values=options["show_values"], dry_run=dry_run)

    def _run_options(
        self, master: str | None, spark_conf: Mapping[str, str] | None, py_files: Sequence[str]
    ) -> "Options":
        from ..pipeline.spark.conf import check_py_files, check_settings

        channels = self._client.channels()
        return replace(
            self._client.settings.run_options(channels.kafka.properties if channels is not None else {}),
            store=self._client.root,
            master=master,
            spark_conf=check_settings(spark_conf or {}, "spark_conf"),
            py_files=check_py_files(py_files, "py_files"),
        )
