"""Where a notebook begins: a store, the apps in it, and what all of them are reached with."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import msgspec

from ..common.argument_types import checked, checked_methods
from ..errors import NotFound
from ..settings import load
from ..store.versions.apps import folder_of, in_folder, list_apps, read_app
from .backends import Backends, names_at, names_of_stage
from .declared.operations import ExpiredOptions, InitOptions, TokenOptions
from .show.document import Block, Title
from .show.shown import Shown
from .when import in_words

if TYPE_CHECKING:
    from ..operations.exchange.initialise import Initialised, Loaded
    from ..operations.maintenance.tokens import Token
    from .app import StoredApp
    from .moment import Moment
    from .show.shown import Result


@checked
def open(store: str | Path | None = None, kafka: str | None = None, *, token: str = "") -> "Client":  # noqa: A001  said as sw.open()
    """The apps of a store, to be looked at and worked with.

    Args:
        store: the store root, `s3://bucket/prefix` or a folder; or the address of a server (`slackwater serve`),
            `http://…`, which gives what it offers: `Server`, whose apps and moments have the same methods to read.
            Default, as for the command line: the environment's `SLACKWATER_STORE`, then `store` of the nearest
            `slackwater.toml`.
        kafka: the brokers, `host:port`; likewise from `SLACKWATER_KAFKA` or the file. Needed only for records in flight
            that no snapshot keeps, for cloning, and to verify deeply.
        token: for a server; default the environment's `SLACKWATER_TOKEN`.

    Raises:
        Usage: nothing says where the store is, or the file is not understood.
        Unavailable: the store did not answer.
    """
    settings = load(store=str(store) if store is not None else None, kafka=kafka)
    if (settings.store or "").startswith(("http://", "https://")):
        from .remote import Server

        # What it offers has the same names; types would have whoever opens a store ask which of the two it got.
        return cast("Client", Server(settings.store_root(), token or os.environ.get("SLACKWATER_TOKEN", "")))
    return Client(settings)


@checked_methods
class Client(Backends, Shown):
    """A store and its apps. Threads may share it. `close` it, or use it in a `with`, to give back its open files.

    Whatever asks the store raises `Unavailable` when it does not answer, and `Usage` once the client is closed.
    """

    _inner = frozenset((
        *("beside", "by", "cache", "called", "channels", "channels_of", "channels_of_clone", "channels_where_needed"),
        *("digest_of", "flags"),
        *("known_channels", "moment", "moment_of_table", "note", "note_thinned"),
        *("on_behalf_of", "program_of"),
        *("settings", "store"),
    ))  # fmt: skip

    @property
    def apps(self) -> tuple[str, ...]:
        """Names of the apps in the store, sorted. One listing."""
        return tuple(sorted(list_apps(self.store)))

    def app(self, name: str) -> "StoredApp":
        """An app of the store. Raises `NotFound` for one that is not there, with the nearest, and `Usage`."""
        read_app(self.store, folder_of(self.store, name))
        return self.called(name)

    def called(self, name: str) -> "StoredApp":
        """The app that has a name, which went over to it from another one, perhaps; whether there is one, is not asked.

        Raises `Usage`, and `NotFound` for a name that did not go over so often.
        """
        # It knows Arrow and DuckDB, which whoever only opens a store shall not wait for.
        from .app import StoredApp

        return StoredApp(self, folder_of(self.store, name), name)

    def moment(self, ref: str, done: str) -> "Moment":
        """The moment of a ref, for reading; `done` is what happens to a stage that alone can be read."""
        from .moment import Moment

        return Moment.around(self, in_folder(self.store, ref), done)

    def moment_of_table(self, text: str, done: str) -> "tuple[Moment, str]":
        """The moment of a ref `APP/TABLE@MOMENT`, and the table; else as `moment`. Raises `NotFound` for the table."""
        from ..snapshot.cut.moments import heads_of, stages_of
        from ..store.versions.side_tables import columns_of, may_have, owner

        app, table, moment = names_at(text)
        folder = folder_of(self.store, app)
        stages = stages_of(self.store, folder)
        # A stage's own table needs no look at its newest version, which may be damaged.
        stage = table if table in stages else owner(table, heads_of(self.store, folder, may_have(table, stages)))
        if stage not in stages:
            raise NotFound(f"table of app {app!r}", table, columns_of(heads_of(self.store, folder, stages)))
        return self.moment(f"{app}/{stage}{moment}", done), table

    def clones(self, source: str = "") -> "Result":
        """The clones under this root, and those of its apps under other roots; only those of the app `source`.

        Of each: the moment that it is of, who has it and why, until when it is wanted, whether it has run, what it
        shares with its source, and which of that only it keeps. Raises `NotFound` where there is no such app.
        """
        from .clones import listed

        return listed(self, source)

    def remove_expired(self, source: str = "", **options: Unpack[ExpiredOptions]) -> "Result":
        """Remove the clones under this root whose time to live is over, those of the app `source` or all.

        One that a runner holds stays without `fence`, and so does one that is protected, or that others live from; the
        result says so. With `topics` their topics and consumer groups go, too. Raises as `StoredApp.remove`.
        """
        from .clones import remove_expired

        return remove_expired(self, source, options)

    def attach(
        self,
        checkpoint: str | Path,
        app: str,
        *,
        stage: str = "",
        partitions: int = 4,
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> "Result":
        """Bring in what a query of Spark has in its checkpoint, one version a batch: its state as an app.

        The query may be running: nothing is written there. Called again it goes on with what is new, and `slackwater
        attach` does so by itself. Batches that were cleaned up before they were read are one version, which says so.

        Args:
            checkpoint: a folder, or what Spark reads.
            app: the app that its state becomes.
            stage: the stage, and its table; default the name of the checkpoint's folder.
            partitions: state partitions of tables that are new.
            master: of the Spark that reads; default all cores of this machine.
            spark_conf: settings of that.
            dry_run: only say what there is.

        Raises:
            Usage: a name is malformed.
            NotFound: there is no checkpoint, or none with a batch.
            Refused: its state cannot be carried, and which; or the stage is another one's.
        """
        from .attaching import attached, tail_of

        how: dict[str, Any] = {"stage": stage, "partitions": partitions, "master": master, "spark_conf": spark_conf}
        with tail_of(self, str(checkpoint), app, **how) as tail:
            return attached(self, tail, lambda _landed: None, dry_run=dry_run)

    def adopt(
        self,
        checkpoint: str | Path,
        *,
        code: str | Path,
        stage: str,
        app: str = "",
        from_batch: int | None = None,
        offsets: Mapping[str, Sequence[int]] | None = None,
        attached: str = "",
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> "Result":
        """Have a query of Spark, which was stopped, go on as a stage: its state, its history and its offsets.

        Its batches become the stage's first versions, all of them or none, and the next run goes on at the next
        offset. Broken off, the same call goes on.

        Args:
            checkpoint: a folder, or `s3://bucket/prefix`. It stays as it is.
            code: the file of the program that declares the app.
            stage: the stage that the query becomes.
            app: the app's name, where it is not the program's.
            from_batch: go on from the end of this batch; default the newest.
            offsets: where the stage goes on, by topic, for those that the query's offsets say nothing of.
            attached: an app that followed the query: its history is taken over, with what the checkpoint has.
            master: of the Spark that reads; default all cores of this machine.
            spark_conf: settings of that.
            dry_run: only say of what each column is made.

        Raises:
            Usage: a name is malformed, or nothing says where Kafka is.
            NotFound: there is no checkpoint, or the program has no such stage.
            Refused: its state has no place in the stage's table, and which columns; or the stage has versions.
            Unavailable: the store or Kafka did not answer; the same call again goes on.
        """
        from .attaching import adopt, query_of

        query = query_of(str(checkpoint), str(code), stage, app, _offsets_in_words(offsets or {}), from_batch, attached)
        how: dict[str, Any] = {"master": master, "spark_conf": spark_conf, "dry_run": dry_run}
        return adopt(self, query, lambda _line: None, **how)

    def init(
        self,
        stage: str,
        file: str | Path = "",
        *,
        code: str | Path,
        offsets: Mapping[str, str | Sequence[int]] | Sequence[str] = (),
        on_progress: "Callable[[Loaded], None]" = lambda _so_far: None,
        **options: Unpack[InitOptions],
    ) -> "Initialised":
        """Begin a stage's table with rows from elsewhere. Starts Spark, which knows the columns of the program.

        Args:
            stage: `"app/stage"`.
            file: what DuckDB reads: Parquet, CSV or JSON, also as a pattern or a URL.
            code: the file of the program that declares the app.
            offsets: where the app begins to read topics: `"earliest"`, `"latest"`, or the offset of each partition;
                or in the words of the command line. Default where the program says.
            on_progress: told how far it is.

        Raises:
            Usage: that is no stage, no offset or no time; or nothing says where Kafka is.
            NotFound: the program has no such stage, or there is no such topic.
            Refused: the stage has versions, or the rows are not the table's: columns, types, a null key, a key twice.
            Unavailable: the store or Kafka did not answer; the same call again finishes it.
        """
        kafka, at = self.known_channels("from which the app goes on").kafka, in_words(options["at"])
        # Spark's Python side takes a second or two.
        from ..operations.exchange.first_version import first_version_of
        from ..operations.exchange.initialise import initialise
        from ..snapshot.query.row_source import RowSource

        app, name = names_of_stage(stage)
        rows, words = RowSource(str(file), options["sql"]), _offsets_in_words(offsets)
        first = first_version_of(str(code), app, name, self.store, kafka, offsets=words, at=at, by=self.by)
        how: Any = {"info": first.info, "channels": first.channels, "on_progress": on_progress}
        done = initialise(self.store, first.manifest, rows, dry_run=options["dry_run"], **how)
        return replace(done, others=first.others, starts=first.info.starts)

    def tokens(self) -> "tuple[Token, ...]":
        """What may be read over HTTP by whoever has a token. One listing, and a read for each."""
        from ..operations.maintenance.tokens import TOKENS

        return TOKENS.all(self.store)

    def digest_of(self, token: str) -> str:
        """What is kept of a token."""
        from ..operations.maintenance.tokens import digest

        return digest(token)

    def add_token(self, name: str, apps: Sequence[str], **options: Unpack[TokenOptions]) -> "Result":
        """Make a token for `slackwater serve`.

        Args:
            name: what it is called.
            apps: what may be read; `"*"` for all.

        Raises `Usage`, `NotFound` for an app, and `Refused` where there is one of that name.
        """
        from ..common.instants import now_ms
        from ..operations.maintenance import tokens
        from .show.maintenance import token_added

        how: Any = {**options, "by": self.by, "now_ms": now_ms()}
        return token_added(*tokens.add(self.store, name, apps_=apps, **how), dry_run=options["dry_run"])

    def remove_token(self, name: str, *, dry_run: bool = False) -> "Result":
        """Remove a token: instances hear of it within five seconds. Raises `NotFound`."""
        from ..operations.maintenance import tokens
        from .show.maintenance import token_removed

        return token_removed(tokens.remove(self.store, name, by=self.by, dry_run=dry_run), dry_run=dry_run)

    def _blocks(self) -> tuple[Block, ...]:
        return (Title(f"slackwater store {self.root}{' (closed)' if self._closed.is_set() else ''}"),)


def _offsets_in_words(offsets: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Return where topics begin as the command line says it: `TOPIC=earliest`, `TOPIC={"0":23}`."""
    if not isinstance(offsets, Mapping):
        return [*offsets]
    return [
        f"{topic}={at if isinstance(at, str) else msgspec.json.encode(dict(enumerate(at))).decode()}"
        for topic, at in offsets.items()
    ]
