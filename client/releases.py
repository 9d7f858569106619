"""A changed program: an app migrated to it, tried on what the app has read, and promoted over it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..common.argument_types import checked_methods
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


@checked_methods
class AppReleases(AppClones):
    """What brings a changed program to an app."""

    def migrate(
        self,
        code: str | Path,
        *,
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        py_files: Sequence[str] = (),
        **options: Unpack[MigrateOptions],
    ) -> "Migrated":
        """Have the app go on with a changed program: all of its stages, or none. No data is rewritten.

        Starts Spark, unless a session runs here already, to see which columns the program declares.

        Args:
            code: the file of the changed program.
            master: Spark's master URL; default one thread of this machine.
            spark_conf: further settings of Spark.
            py_files: Python files and zips that the program imports.

        Returns:
            What was changed (`plan.changes`), by which versions, and the snapshot of the moment before.

        Raises:
            Usage: an argument is not one that could work, or the program declares something that cannot be.
            NotFound: a rename names a column or stage that is not there, or a new input needs Kafka and nothing says
                where that is.
            Refused: what is stored cannot be kept under the program, or somebody else migrates the app. Nothing was
                changed.
        """
        # Spark's Python side takes a second or two.
        from ..operations.program_changes.program import migrate_file

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
        """Run a changed program over the input that the app read between two moments, on a Spark of this machine.

        A query of `allow` sees the differences of one table under its name, with its key, `change`, `before_…` and
        `after_…`, and returns keys. What is wrong with one is raised before anything runs, but for columns that only
        the schemas of the changed program decide: then it has failed, and the result says so. A share of `keys` is
        refused where a stage mixes keys.

        Args:
            code: the file of the changed program.
            start: the moment from which on its input is taken, as `at` takes it.
            end: the one up to which; default now.
            before: the file of the program that ran. It works off the same input, and is compared with, where rows were
                on the way at `end` or the app has sinks; without it, what sinks are given is not compared.
            reports: files to write it to.
            show_values: tell the rows that differ.
            master: Spark's master URL; default all cores of this machine.
            spark_conf: further settings of Spark.
            py_files: Python files and zips that the programs import.
            on_progress: told in words what goes on.

        Raises:
            Usage: a moment is malformed, the second one is not after the first, a query of `allow` is wrong, or nothing
                says where Kafka is.
            NotFound: there is no such moment or stage, or a query names a column that there is not.
            Refused: the program does not fit, Kafka does not have the records any more, rows are on the way at `end`
                and `before` is not given, or an app has the name `keep`.
            KeyboardInterrupt: it was stopped, by Ctrl-C or SIGTERM. Nothing is compared then, and the clone is gone.
        """
        from ..operations.staging.sample import Sample
        from ..operations.staging.trial import plan_of, trial
        from ..operations.staging.trial_plan import Release
        from ..pipeline.listener import Callbacks
        from .show import programs, trials
        from .show.report import Mask

        client = self._client
        client.known_channels("which has the input to be read")
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
            sample=Sample.of(options["keys"]) if options["keys"] else None,
            renames=options["rename"] or {},
            stages=options["rename_stage"] or {},
        )
        if options["dry_run"]:
            plan_of(release, run_options)
            looked = self.migrate(code, rename=release.renames, rename_stage=release.stages, dry_run=True)
            return programs.migrated(looked, str(code), dry_run=True)
        found = trial(release, run_options, client.cache, by=client.by, listener=Callbacks(on_progress))
        if reports is not None:
            reports.put(client, trials.page(found, str(code), Mask(show_values)))
        return trials.trial(found, str(code), show_values=show_values)

    def promote(
        self,
        over: str = "",
        *,
        on_wait: Callable[[str], None] = lambda _what: None,
        **options: Unpack[PromoteOptions],
    ) -> Result:
        """Give this app another one's name, its sinks, and the right to write to them.

        Args:
            over: the name that this app gets: of the app that it is a clone of, or that was cloned from it.
            on_wait: told how far they are.

        Raises:
            Usage: there is not just one app that is to get the name, or nothing says where Kafka is.
            NotFound: there is no such app.
            Refused: this app is no clone, or a sink has no counterpart in it; it never ran, or does not while the other
                one does; another promotion is under way; or they did not come to stand at the same offsets in time.
                Nothing has gone over then.
        """
        dry_run = options["dry_run"]
        if bool(over) == options["back"]:
            raise Usage("give either the app to promote, or --back: who gets the name is it, or the one that had it")
        client, staging = self._client, self.called if over else ""
        loser = type(self)(client, folder_of(client.store, over), over) if over else self
        name = loser.called
        if "~" in name:
            raise Usage(f"{name} is an app that a name went over from", hint="promote over the name alone")
        what = f"to promote {staging} over it" if staging else "to give the name back"
        channels = client.known_channels("which has the topics that both apps read")
        done = promote(
            client.store,
            channels,
            name,
            staging,
            by=client.by,
            cache=client.cache,
            timeout_s=options["timeout_s"],
            dry_run=dry_run,
            allowed=lambda: loser._check_allowed(what, options),
            on_wait=on_wait,
        )
        if done.idle:
            called = staging or f"{name}~1"
            client.note(f"note: nobody runs {name} or {called}: nothing is published until one of them is started")
        return snapshots.promoted(done, with_values=options["show_values"], dry_run=dry_run)

    def _run_options(
        self, master: str | None, spark_conf: Mapping[str, str] | None, py_files: Sequence[str]
    ) -> "Options":
        """How Spark is started; with Kafka where the client knows it. Raises `Usage`."""
        from ..pipeline.spark.conf import check_py_files, check_settings

        channels = self._client.channels()
        return replace(
            self._client.settings.run_options(channels.kafka.properties if channels is not None else {}),
            store=self._client.root,
            master=master,
            spark_conf=check_settings(spark_conf or {}, "spark_conf"),
            py_files=check_py_files(py_files, "py_files"),
        )
