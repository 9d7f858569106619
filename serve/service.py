"""State of a server instance (client, pollers, caches, process pools), and of one request."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from cachetools import TTLCache

from ..client import Client
from ..client.show.shown import encode_json
from ..common import runtime
from ..common.instants import now_ms
from ..errors import NotFound
from ..snapshot.query.sql import Bounds
from ..store.sst.arrow_types import escape_invalid_text
from .errors import NotYet, TooOften
from .health.metrics import ServeMetrics
from .health.store_watch import StoreWatch
from .newest import AppPoller
from .peers import FORWARDED_HEADER, Peers
from .rows.fresh import CachedMoment
from .rows.look_ups import SharedLookUps, warm_up
from .sql import SqlProcessPool, SqlStatement
from .tokens import Grant

if TYPE_CHECKING:
    from ..client.app import StoredApp
    from ..client.moment import Moment

T = TypeVar("T")
ARROW, JSON = "application/vnd.apache.arrow.stream", "application/json"
_MOMENT_CACHE_S = 2.0
_SHARED_S = 1.0
_MAX_POLLERS = 256
"""Number of apps above which pollers of apps without followers are dropped."""
_VERSION = re.compile(r"v\d{1,19}")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Limits and intervals of a server instance."""

    poll_interval_s: float = 0.25
    request_timeout_s: float = 60.0
    threads: int = 16
    sql_timeout_s: float = 10.0
    sql_memory_mb: int = 512
    sql_rows: int = 10_000
    sql_processes: int = 2
    """Maximum number of concurrent SQL statements of one client."""
    prestart_sql: bool = True
    long_timeout_s: float = 300.0
    """Time limit of a bisect, replay or verification."""
    max_long_operations: int = 2
    programs: Mapping[str, Path] = field(default_factory=dict)
    answer_bytes: int = 64 << 10


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    body: bytes
    media_type: str = JSON
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    """Number of rows, for the audit log."""


class Service:
    """State of a server instance. Belongs to one event loop."""

    def __init__(self, client: Client, options: ServeOptions, advertise: str = "") -> None:
        self.client, self.options = client, options
        self._pool = runtime.executor(options.threads, name="serve")
        self.peers = Peers(client.store, advertise, self.in_thread, self._rewarm) if advertise else None
        self._pollers: dict[str, AppPoller] = {}
        self._moments: TTLCache[tuple[str, str, str], CachedMoment] = TTLCache(
            1_024, _MOMENT_CACHE_S, runtime.monotonic
        )
        self._shared: TTLCache[Hashable, asyncio.Task[Any]] = TTLCache(256, _SHARED_S, runtime.monotonic)
        self.look_ups = SharedLookUps(self.in_thread)
        self.store_watch = StoreWatch(client.store)
        self.metrics = ServeMetrics()
        self.streams = Counter[str]()
        on_replaced = self.metrics.count_replaced_process
        self.statements = SqlProcessPool(
            client.settings, options.sql_processes, options.sql_memory_mb << 20, on_replaced
        )
        self.replays = SqlProcessPool(client.settings, 1, 0, reuses_processes=False)
        self.metrics.set_gauge_function("sql_waiting", lambda: self.statements.num_pending)
        self.metrics.set_gauge_function("store_answers", lambda: not self.store_watch.is_unavailable)
        self.metrics.set_gauge_function("streams", self.streams.total)
        self._long = 0
        self._warming: asyncio.Task[None] | None = None

    def in_thread(self, function: Callable[[], T]) -> Coroutine[Any, Any, T]:
        return _awaited(asyncio.get_running_loop().run_in_executor(self._pool, function))

    async def run_shared(self, name: Hashable, function: Callable[[], T]) -> T:
        """Return a function's result; concurrent calls with equal names share one call in a thread."""
        task: asyncio.Task[T] | None = self._shared.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._shared[name] = asyncio.create_task(self.in_thread(function))
        return await asyncio.shield(task)

    async def poller(self, app: str) -> AppPoller:
        follower = self._pollers.get(app)
        if follower is None:
            if len(self._pollers) >= _MAX_POLLERS:
                self._pollers = {name: poller for name, poller in self._pollers.items() if poller.is_polling}
            stored_app = await self.in_thread(lambda: self.client.app(app))
            follower = self._pollers.setdefault(
                app, AppPoller(stored_app, self.in_thread, self.options.poll_interval_s, self._owned)
            )
        return follower

    def _owned(self, app: str, table: str, partitions: Iterable[int]) -> Sequence[int]:
        return [*partitions] if self.peers is None else self.peers.owned_partitions(app, table, partitions)

    def _rewarm(self) -> None:
        for follower in self._pollers.values():
            follower.warm()

    async def cached_moment(
        self, app: str, ref: str, stage: str, *, prefer_newest: bool = False, follow: bool = True
    ) -> CachedMoment:
        """Return a moment of an app, from the cache if possible.

        With `prefer_newest`, returns the newest moment if its version of `stage` is the version that `ref` names. With
        `follow`, the app is polled for a while after a request for its newest moment. Raises the errors of
        `StoredApp.at`.
        """
        if (ref == "now" and not stage) or prefer_newest:
            reading = await (await self.poller(app)).newest_moment(follow=follow)
            if ref == "now" or f"v{reading.moment.versions.get(stage)}" == ref:
                return reading
        name = (app, ref, stage)
        moment_cached = self._moments.get(name)
        if moment_cached is None:
            moment = await self.run_shared(("moment", *name), lambda: self._moment(app, ref, stage))
            moment_cached = self._moments.setdefault(name, CachedMoment(moment))
        return moment_cached

    def _moment(self, app: str, ref: str, stage: str) -> "Moment":
        moment = self.client.app(app).at(ref, stage=stage)
        moment.current_cut()  # update this process's cache of forgotten keys
        return moment

    def check_not_busy(self) -> None:
        """Raise `TooOften` if too many long operations are running."""
        if self._long >= self.options.max_long_operations:
            raise TooOften(f"{self._long} bisects, replays or verifications are already running", after_s=5)

    @contextmanager
    def long_operation(self) -> Iterator[None]:
        """Count a long operation during the context. Raises `TooOften` if too many are running."""
        self.check_not_busy()
        self._long += 1
        try:
            yield
        finally:
            self._long -= 1

    async def start(self) -> None:
        if self.options.prestart_sql:
            self._warming = asyncio.create_task(self.statements.warm())
        await self.in_thread(_preload)
        if self.peers is not None:
            await self.peers.start_heartbeats()

    async def stop(self) -> None:
        for follower in self._pollers.values():
            follower.close()
        if self.peers is not None:
            await self.peers.stop_heartbeats()
        self.statements.close()
        self.replays.close()
        self.store_watch.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _preload() -> None:
    """Import modules that would cost the first request a third of a second each."""
    from ..client import app  # noqa: F401

    pa.array(np.zeros(1))
    warm_up()


async def _awaited(future: "asyncio.Future[T]") -> T:
    return await future


@dataclass(frozen=True, slots=True)
class Call:
    """A request: its caller, and the format of the answer."""

    service: Service
    grant: Grant
    wants_arrow: bool = False
    known_etags: frozenset[str] = frozenset()
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Headers that identify the caller to another instance."""
    is_forwarded: bool = False
    seen_ms: int = 0
    """Time by which rows with a time to live expire and are hidden; 0 for the moment's own time."""
    secret: bytes = b""
    """Secret with which pseudonyms of hidden values are computed; empty if the caller may see values."""

    @classmethod
    def from_request(
        cls, service: Service, grant: Grant, headers: Mapping[str, str], arguments: Mapping[str, Any]
    ) -> "Call":
        wants_arrow = (
            arguments.get("format") or ("arrow" if ARROW in headers.get("accept", "") else "json")
        ) == "arrow"
        if_none_match = headers.get("if-none-match", "")
        etags = (
            frozenset(etag.strip().removeprefix("W/") for etag in if_none_match.split(","))
            if if_none_match
            else frozenset[str]()
        )
        credentials = {name: headers[name] for name in ("authorization",) if name in headers}
        hop = headers.get(FORWARDED_HEADER, "")
        seen_ms = int(hop) if hop.isdecimal() and len(hop) < 16 else 0
        return cls(service, grant, wants_arrow, etags, credentials, is_forwarded=bool(hop), seen_ms=seen_ms)

    def app(self, name: str, view: str = "") -> "StoredApp":
        """Return an app that the caller may read. With `view`, the caller must have the right to read all its tables.

        `view` is the name of a view that shows all tables, such as the log. Operations on the app are recorded under
        the token's name. Raises `Denied`, and the errors of `Client.app`.
        """
        if view:
            self.grant.check_all_tables(view)
        self.grant.check_app(name)
        client = self.service.client
        return (client.on_behalf_of(self.grant.name) if self.grant.name else client).app(name)

    async def app_with_all_tables(self, name: str, view: str) -> "StoredApp":
        """Return an app if the caller may read all its tables; `view` is the requested view, for the error.

        Raises `Denied`, and `NotFound` for an unknown app.
        """
        return await self.service.in_thread(lambda: self.app(name, view))

    async def moment(
        self,
        app: str,
        ref: str,
        stage: str = "",
        *,
        table: str = "",
        min_offsets: Sequence[str] = (),
        wait_ms: int = 0,
        follow: bool = True,
    ) -> CachedMoment:
        """Return a moment that the caller may read. For the newest moment, wait until the app has read `min_offsets`.

        With `table`, the returned moment has a table of this name. `follow` is that of `Service.cached_moment`. Raises
        `Denied`, `NotYet`, and the errors of `StoredApp.at`.
        """
        self.grant.check_app(app)
        if table:
            self.grant.check_table(table)
            stage = stage or (table if _VERSION.fullmatch(ref) else "")
        reading = await self._with_table(
            table, await self.service.cached_moment(app, ref, stage, prefer_newest=self.is_forwarded, follow=follow)
        )
        if not min_offsets:
            return reading
        expected, tables = [_min_offset(text) for text in min_offsets], (table,) if table else ()

        def has_read(candidate: CachedMoment) -> bool:
            offsets_read = candidate.offsets(*tables)
            return all(
                topic in offsets_read and part < len(offsets_read[topic]) and offsets_read[topic][part] > last
                for topic, part, last in expected
            )

        if not reading.has_cached_offsets(*tables):
            await self.service.in_thread(lambda: reading.offsets(*tables))
        offsets = reading.offsets(*tables)
        if unknown := {topic for topic, _, _ in expected} - offsets.keys():
            raise NotFound("input topic", min(unknown), offsets)
        is_read = has_read(reading)
        if not is_read and reading.is_newest:
            later, is_read = await (await self.service.poller(app)).wait_until(has_read, wait_ms / 1_000)
            reading = await self._with_table(table, later)
        if not is_read:
            raise NotYet(
                f"the state has not read {', '.join(min_offsets)} yet",
                offsets=reading.offsets(*tables),
                hint="offsets has the next offset of each partition; retry, or wait longer (wait_ms)",
            )
        return reading

    async def _with_table(self, table: str, reading: CachedMoment) -> CachedMoment:
        if not table or reading.has_table(table):
            return reading
        renamed = await self.service.in_thread(lambda: reading.moment.with_table(table))
        return CachedMoment(renamed, reading.is_newest, reading.on_read)

    def bounds(self, folder: str) -> Bounds:
        options, grant = self.service.options, self.grant
        tables = None if grant.may_read_table("*") else grant.tables
        return Bounds(
            options.sql_timeout_s,
            options.sql_memory_mb,
            tables=tables,
            app="" if grant.may_read_app("*") else folder,
            secret=self.secret,
        )

    def sql_statement(self, reading: CachedMoment, ref: str, stage: str, sql: str, limit: int) -> SqlStatement:
        cut, is_newest = reading.moment.cut, reading.is_newest
        return SqlStatement(
            app=cut.app,
            ref="" if is_newest else ref,
            stage=stage,
            versions=cut.versions,
            seen_ms=now_ms() if is_newest else 0,
            sql=sql,
            max_rows=min(limit, self.service.options.sql_rows),
            bounds=self.bounds(cut.app),
        )

    def json_answer(self, data: object, *, headers: dict[str, str] | None = None, rows: int = 0) -> Answer:
        return Answer(encode_json(data), headers=headers or {}, rows=rows)

    def etag(self, *parts: object) -> str:
        return f'"{".".join(map(str, parts))}{".arrow" if self.wants_arrow else ""}"'


def event(name: str, data: object, number: int | None = None) -> bytes:
    # Encoded rows contain line breaks, which would end the event's data.
    line = "" if number is None else f"id: {number}\n"
    return f"event: {name}\n{line}data: ".encode() + encode_json(data).replace(b"\n", b"") + b"\n\n"


def _min_offset(text: str) -> tuple[str, int, int]:
    topic, partition, offset = text.rsplit(":", 2)
    return topic, int(partition), int(offset)


def arrow_bytes(table: pa.Table, metadata: dict[str, object]) -> bytes:
    """Return an Arrow IPC stream; the schema's metadata holds the answer's other fields, as JSON."""
    table = escape_invalid_text(table).replace_schema_metadata({"slackwater": encode_json(metadata)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data
