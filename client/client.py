"""`Client` of a store, the entry point for notebooks: it opens apps and holds the connections."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import msgspec

from ..common.arguments import check_arguments, check_method_arguments
from ..common.extras import require_extras
from ..settings import load
from ..store.versions.apps import folder_of, list_apps, read_app, replace_name_by_folder
from .backends import Backends, split_stage_name, split_table_ref
from .declared.operations import ExpiredOptions, InitOptions, TokenOptions
from .show.document import Block, Title
from .show.shown import Displayable
from .when import moment_text

if TYPE_CHECKING:
    from ..operations.exchange.initialise import Initialised, LoadProgress
    from ..operations.maintenance.tokens import Token
    from .app import StoredApp
    from .moment import Moment
    from .show.shown import Result


@check_arguments
def open(store: str | Path | None = None, kafka: str | None = None, *, token: str = "") -> "Client":  # noqa: A001  said as sw.open()
    """Open a store, or a server, and return the client of its apps.

    Args:
        store: the store root, `s3://bucket/prefix` or a folder; or the address of a server (`slackwater serve`),
            `http://…`. A server's apps and moments have the same methods for reading. Default, as for the command line:
            the environment's `SLACKWATER_STORE`, then `store` of the nearest `slackwater.toml`.
        kafka: the brokers, `host:port`; default the environment's `SLACKWATER_KAFKA`, then `kafka` of that file. Needed
            only for in-flight records that no snapshot keeps, for cloning, and for deep verification.
        token: for a server; default the environment's `SLACKWATER_TOKEN`.

    Raises:
        Usage: no store is configured, or `slackwater.toml` is malformed.
        Unavailable: the store did not answer.
    """
    settings = load(store=str(store) if store is not None else None, kafka=kafka)
    if (settings.store or "").startswith(("http://", "https://")):
        from .remote import Server

        # A union type would make every caller check which of the two it received.
        return cast("Client", Server(settings.store_root(), token or os.environ.get("SLACKWATER_TOKEN", "")))
    return Client(settings)


@check_method_arguments
class Client(Backends, Displayable):
    """A store and its apps; thread-safe. Close it, or use it in a `with`, to release its open files.

    Methods that read the store raise `Unavailable` if it does not answer, and `Usage` once the client is closed.
    """

    _internal_names = frozenset((
        *("at_root", "by", "cache", "channels", "channels_for_clone", "channels_of", "channels_or_stub", "digest_of"),
        *("flags", "moment", "moment_of_table", "note", "note_thinned", "on_behalf_of", "program_path"),
        *("require_channels", "settings", "store", "unchecked_app"),
    ))  # fmt: skip

    @property
    def apps(self) -> tuple[str, ...]:
        """Names of the apps in the store, sorted. Costs one listing."""
        return tuple(sorted(list_apps(self.store)))

    def app(self, name: str) -> "StoredApp":
        """Return an app of the store. Raises `NotFound`, which suggests the most similar name."""
        read_app(self.store, folder_of(self.store, name))
        return self.unchecked_app(name)

    def unchecked_app(self, name: str) -> "StoredApp":
        """Return the app that has this name now, by creation or promotion, without checking that it exists.

        Raises `Usage` for a malformed name, and `NotFound` for a name such as `APP~2` if the name had fewer promotions.
        """
        # Opening a store must not wait for the import of Arrow and DuckDB.
        from .app import StoredApp

        return StoredApp(self, folder_of(self.store, name), name)

    def moment(self, ref: str, participle: str) -> "Moment":
        """Return the moment of a ref. `participle`, such as "read", completes printed notes."""
        from .moment import Moment

        return Moment.from_ref(self, replace_name_by_folder(self.store, ref), participle)

    def moment_of_table(self, text: str, participle: str) -> "tuple[Moment, str]":
        """Return the moment and the table that the ref `APP/TABLE@MOMENT` names.

        Raises `NotFound` for an unknown table, and the errors of `moment`.
        """
        from ..snapshot.cut.moments import existing_stage_of_table
        from .moment import Moment

        app, table, moment = split_table_ref(text)
        folder = folder_of(self.store, app)
        stage = existing_stage_of_table(self.store, folder, table, called=app)
        # Not `self.moment`, which takes an app's name: the folder's name may be the name of another app.
        return Moment.from_ref(self, f"{folder}/{stage}{moment}", participle), table

    def clones(self, source: str = "") -> "Result":
        """List the clones in this store, and the clones that its apps have under other store roots.

        With `source`, lists only clones of that app. The result has a clone's moment, owner, purpose and expiry, a flag
        that is true if the clone has run, the bytes that it shares with its source, and the bytes that are kept only
        for it. Raises `NotFound` for an unknown app.
        """
        from .clones import clones_result

        return clones_result(self, source)

    def remove_expired(self, source: str = "", **options: Unpack[ExpiredOptions]) -> "Result":
        """Remove the expired clones under this root; with `source`, only clones of that app.

        A clone is not removed, but listed in the result, if it is running (unless `fence` is set), is protected, or is
        the source of a clone. With `topics`, also removes the clones' topics and consumer groups. Raises the errors of
        `StoredApp.remove`.
        """
        from .clones import remove_expired

        return remove_expired(self, source, options)

    def attach(
        self,
        source: str | Path,
        app: str,
        *,
        stage: str = "",
        partitions: int = 4,
        formats: Mapping[str, str] | None = None,
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> "Result":
        """Import the batches of a Spark query's checkpoint, or the records of a topic, into an app.

        The query or the topic's writer may be running, because its data is only read. A second call continues, and
        `slackwater attach` follows the source continuously. Batches that Spark removed before they were read become one
        version.

        Args:
            source: a checkpoint: a folder, or any path that Spark reads; or a compacted topic, `kafka:TOPIC`.
            app: the app that the state becomes.
            stage: the stage and its table; default the name of the checkpoint's folder, or of the topic.
            partitions: number of state partitions of new tables.
            formats: for a topic: `key`, `value`, `columns` and `registry`, as the options of the command.
            master: master of the Spark that reads; default all cores of this machine.
            spark_conf: settings of that Spark.
            dry_run: only describe the batches.

        Raises:
            Usage: a name or a format is malformed.
            NotFound: there is no checkpoint or topic, or the checkpoint has no batch.
            Refused: the state cannot be converted, with the reason; or the stage belongs to another source.
        """
        from .attaching import attach_batches, open_tail

        how: dict[str, Any] = {"stage": stage, "partitions": partitions, "master": master, "spark_conf": spark_conf}
        with open_tail(self, str(source), app, formats=formats or {}, **how) as tail:
            return attach_batches(self, tail, lambda _landed: None, dry_run=dry_run)

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
        """Continue a stopped Spark query as a stage, with its state, history and offsets.

        The query's batches become the stage's first versions, atomically, and the next run continues at the next
        offset. After an interruption, the same call resumes.

        Args:
            checkpoint: a folder, or `s3://bucket/prefix`. It is not changed.
            code: the file of the program that declares the app.
            stage: the stage that the query becomes.
            app: the app's name; default the program's.
            from_batch: continue from the end of this batch; default the newest.
            offsets: start offsets by topic, for topics without an offset in the query.
            attached: an app that followed the query with `attach`; the stage takes over that app's history, too.
            master: master of the Spark that reads; default all cores of this machine.
            spark_conf: settings of that Spark.
            dry_run: only describe the source of each column.

        Raises:
            Usage: a name is malformed, or no Kafka is configured.
            NotFound: there is no checkpoint, or the program has no such stage.
            Refused: columns of the state do not fit the stage's table, with their names; or the stage has versions.
            Unavailable: the store or Kafka did not answer; the same call again resumes.
        """
        from .attaching import adopt, request_adoption

        typed = _typed_offsets(offsets or {})
        about = (str(checkpoint), str(code), stage, app, typed, from_batch, attached, master, spark_conf or {})
        return adopt(self, request_adoption(*about), lambda _line: None, dry_run=dry_run)

    def init(
        self,
        stage: str,
        file: str | Path = "",
        *,
        code: str | Path,
        offsets: Mapping[str, str | Sequence[int]] | Sequence[str] = (),
        on_progress: "Callable[[LoadProgress], None]" = lambda _so_far: None,
        **options: Unpack[InitOptions],
    ) -> "Initialised":
        """Begin a stage's table with existing rows. Starts Spark to learn the program's columns.

        Args:
            stage: `"app/stage"`.
            file: a file that DuckDB reads: Parquet, CSV or JSON, also a glob or a URL.
            code: the file of the program that declares the app.
            offsets: start of each topic: `"earliest"`, `"latest"`, or the offset of each partition; or a list as on the
                command line. Default: the program's.
            on_progress: called with the rows read and written so far.

        Raises:
            Usage: the stage, an offset or a time is malformed, or no Kafka is configured.
            NotFound: the program has no such stage, or a topic does not exist.
            Refused: the stage has versions, or the rows do not fit the table: columns, types, a null key, a duplicate
                key.
            Unavailable: the store or Kafka did not answer; the same call again finishes it.
        """
        require_extras("spark", "reading the program's columns")
        kafka, at = self.require_channels("to look up offsets").kafka, moment_text(options["at"])
        # Importing PySpark takes a second or two.
        from ..operations.exchange.first_version import load_first_version
        from ..operations.exchange.initialise import initialise
        from ..snapshot.query.row_source import RowSource

        app, name = split_stage_name(stage)
        rows, typed_offsets = RowSource(str(file), options["sql"]), _typed_offsets(offsets)
        first = load_first_version(str(code), app, name, self.store, kafka, offsets=typed_offsets, at=at, by=self.by)
        how: Any = {"info": first.info, "channels": first.channels, "on_progress": on_progress}
        done = initialise(self.store, first.manifest, rows, dry_run=options["dry_run"], **how)
        return replace(done, others=first.other_stages, starts=first.info.starts)

    def tokens(self) -> "tuple[Token, ...]":
        """Return the tokens of the store. Costs one listing, and one request per token."""
        from ..operations.maintenance.tokens import TOKENS

        return TOKENS.all(self.store)

    def digest_of(self, token: str) -> str:
        """Return the digest with which the store identifies a token."""
        from ..operations.maintenance.tokens import digest

        return digest(token)

    def add_token(self, name: str, apps: Sequence[str], **options: Unpack[TokenOptions]) -> "Result":
        """Make a token for `slackwater serve`.

        Args:
            name: the token's name.
            apps: apps that the token may read; `"*"` is any app.

        Raises `Usage`, `NotFound` for an unknown app, and `Refused` if the name is taken.
        """
        from ..common.instants import now_ms
        from ..operations.maintenance import tokens
        from .show.maintenance import new_token_result

        how: Any = {**options, "by": self.by, "now_ms": now_ms()}
        return new_token_result(*tokens.add(self.store, name, apps_=apps, **how), dry_run=options["dry_run"])

    def remove_token(self, name: str, *, dry_run: bool = False) -> "Result":
        """Remove a token. Running servers refuse it within five seconds. Raises `NotFound` for an unknown token."""
        from ..operations.maintenance import tokens
        from .show.maintenance import token_removal_result

        gone = tokens.remove(self.store, name, by=self.by, dry_run=dry_run)
        return token_removal_result(name, gone, dry_run=dry_run)

    def _blocks(self) -> tuple[Block, ...]:
        return (Title(f"slackwater store {self.root}{' (closed)' if self._closed.is_set() else ''}"),)


def _typed_offsets(offsets: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Format start offsets as on the command line: `TOPIC=earliest`, `TOPIC={"0":23}`."""
    if not isinstance(offsets, Mapping):
        return [*offsets]
    return [
        f"{topic}={at if isinstance(at, str) else msgspec.json.encode(dict(enumerate(at))).decode()}"
        for topic, at in offsets.items()
    ]
