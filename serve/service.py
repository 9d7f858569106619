"""What an instance works with: the library's client, the apps it follows, look-ups; and what one request asks."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from cachetools import LRUCache, TTLCache

from ..client import Client
from ..client.show.shown import encoded
from ..common.instants import now_ms
from ..errors import NotFound
from ..snapshot.query.sql import Bounds
from ..store.sst.showable import escaped
from .errors import NotYet, TooOften
from .health.metrics import ServeMetrics
from .health.store_watch import StoreWatch
from .newest import Newest
from .peers import HOP, Peers
from .rows.fresh import FreshMoment
from .rows.look_ups import SharedLookUps, rehearse
from .sql import Question, Statements
from .tokens import Grant

if TYPE_CHECKING:
    from ..client.app import StoredApp
    from ..client.moment import Moment

T = TypeVar("T")
ARROW, JSON = "application/vnd.apache.arrow.stream", "application/json"
_REMEMBERED_S = 2.0
"""For so long a ref is taken to mean the same moment."""
_SHARED_S = 1.0
"""For so long what one request has found is another's, too."""
_VERSION = re.compile(r"v\d{1,19}")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How an instance serves."""

    every_s: float = 0.25
    """How often it looks for newer versions of the apps that it is asked about."""
    request_s: float = 60.0
    """What a request may take."""
    threads: int = 16
    """That wait for the store."""
    sql_s: float = 10.0
    """What a statement may take."""
    sql_memory_mb: int = 512
    """And what memory, in MiB."""
    sql_rows: int = 10_000
    """That it may return."""
    sql_processes: int = 2
    """Statements that are carried out at a time."""
    sql_is_ready: bool = True
    """Whether a process for them starts before one is asked."""
    long_s: float = 300.0
    """What a search may take, a replay, or a proof."""
    long_at_once: int = 2
    """So many of these are under way at a time."""
    programs: Mapping[str, Path] = field(default_factory=dict)
    """By app, the program that ran: without it, nothing of the app is replayed."""
    answer_bytes: int = 64 << 10
    """What an answer to an agent may have."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent."""

    body: bytes
    media_type: str = JSON
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    """For the audit line."""


class Service:
    """Of one event loop."""

    def __init__(self, client: Client, options: ServeOptions, advertise: str = "") -> None:
        self.client, self.options = client, options
        self._pool = ThreadPoolExecutor(options.threads, thread_name_prefix="serve")
        self.peers = Peers(client.store, advertise, self.in_thread, self._rewarm) if advertise else None
        self._followed: LRUCache[str, Newest] = LRUCache(256)
        self._moments: TTLCache[tuple[str, str, str], FreshMoment] = TTLCache(1_024, _REMEMBERED_S)
        self._shared: TTLCache[Hashable, asyncio.Task[Any]] = TTLCache(256, _SHARED_S)
        self.look_ups = SharedLookUps(self.in_thread)
        self.store_watch = StoreWatch(client.store)
        self.metrics = ServeMetrics()
        self.streams = Counter[str]()
        """That are open, by who asked."""
        told = self.metrics.replaced
        self.statements = Statements(client.settings, options.sql_processes, options.sql_memory_mb << 20, told)
        self.replays = Statements(client.settings, 1, 0, stays=False)
        self.metrics.look("sql_waiting", lambda: self.statements.under_way)
        self.metrics.look("store_answers", lambda: not self.store_watch.is_away)
        self.metrics.look("streams", self.streams.total)
        self._long = 0
        self._warming: asyncio.Task[None] | None = None

    def in_thread(self, function: Callable[[], T]) -> Coroutine[Any, Any, T]:
        """Call a function where it may wait for the store."""
        return _awaited(asyncio.get_running_loop().run_in_executor(self._pool, function))

    async def shared(self, name: Hashable, function: Callable[[], T]) -> T:
        """What a function gives in a thread, called once for all who ask by that name at about the same time."""
        task: asyncio.Task[T] | None = self._shared.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._shared[name] = asyncio.create_task(self.in_thread(function))
        return await asyncio.shield(task)

    async def newest(self, app: str) -> Newest:
        """Follow an app. Raises `NotFound`, and `Usage`."""
        found = self._followed.get(app)
        if found is None:
            known = await self.in_thread(lambda: self.client.app(app))
            found = self._followed.setdefault(app, Newest(known, self.in_thread, self.options.every_s, self._owned))
        return found

    def _owned(self, app: str, table: str, partitions: Iterable[int]) -> Sequence[int]:
        return [*partitions] if self.peers is None else self.peers.owns(app, table, partitions)

    def _rewarm(self) -> None:
        for each in self._followed.values():
            each.warm()

    async def reading(self, app: str, ref: str, stage: str, *, prefer_newest: bool = False) -> FreshMoment:
        """A moment of an app; the newest where that has this version of the stage, if it is to be preferred.

        Raises as `StoredApp.at`.
        """
        if (ref == "now" and not stage) or prefer_newest:
            reading = await (await self.newest(app)).reading()
            if ref == "now" or f"v{reading.moment.versions.get(stage)}" == ref:
                return reading
        name = (app, ref, stage)
        found = self._moments.get(name)
        if found is None:
            moment = await self.shared(("moment", *name), lambda: self._moment(app, ref, stage))
            found = self._moments.setdefault(name, FreshMoment(moment))
        return found

    def _moment(self, app: str, ref: str, stage: str) -> "Moment":
        moment = self.client.app(app).at(ref, stage=stage)
        moment.current()  # what was forgotten since is not in what this process knows of it
        return moment

    def check_not_busy(self) -> None:
        """Raise as `taking_long`."""
        if self._long >= self.options.long_at_once:
            raise TooOften(f"{self._long} searches, replays or proofs are under way", after_s=5)

    @contextmanager
    def taking_long(self) -> Iterator[None]:
        """Inside is one of the things that take long. Raises `TooOften` where enough of them are under way."""
        self.check_not_busy()
        self._long += 1
        try:
            yield
        finally:
            self._long -= 1

    async def begin(self) -> None:
        """Have ready what takes long to start."""
        if self.options.sql_is_ready:
            self._warming = asyncio.create_task(self.statements.warm())
        await self.in_thread(_import)
        if self.peers is not None:
            await self.peers.begin()

    async def end(self) -> None:
        """Follow nothing any more, and end what waits."""
        for each in self._followed.values():
            each.close()
        if self.peers is not None:
            await self.peers.end()
        self.statements.close()
        self.replays.close()
        self.store_watch.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _import() -> None:
    """What the first request would wait for: all that reads, and Arrow's look for pandas, a third of a second each."""
    from ..client import app  # noqa: F401

    pa.array(np.zeros(1))
    rehearse()


async def _awaited(found: "asyncio.Future[T]") -> T:
    return await found


@dataclass(frozen=True, slots=True)
class Call:
    """One request: of whom, for what, and how it wants to be answered."""

    service: Service
    grant: Grant
    wants_arrow: bool = False
    known_etags: frozenset[str] = frozenset()
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Headers by which another instance knows who asks."""
    is_passed_on: bool = False
    """Whether another instance passed it on to this one, which then answers it."""
    seen_ms: int = 0
    """The time as of which rows expire by write time; 0 for the moment's own."""
    secret: bytes = b""
    """What SQL sees names in the place of values by; empty where who asks may see values."""

    @classmethod
    def of(cls, service: Service, grant: Grant, headers: Mapping[str, str], found: Mapping[str, Any]) -> "Call":
        """From a request's headers and parameters."""
        wants_arrow = (found.get("format") or ("arrow" if ARROW in headers.get("accept", "") else "json")) == "arrow"
        known = headers.get("if-none-match", "")
        etags = frozenset(each.strip().removeprefix("W/") for each in known.split(",")) if known else frozenset[str]()
        sent = {name: headers[name] for name in ("authorization",) if name in headers}
        hop = headers.get(HOP, "")
        seen_ms = int(hop) if hop.isdecimal() and len(hop) < 16 else 0
        return cls(service, grant, wants_arrow, etags, sent, is_passed_on=bool(hop), seen_ms=seen_ms)

    def app(self, name: str, what: str = "") -> "StoredApp":
        """An app that may be read, and all of its tables where `what` is asked, such as its log.

        What is done to it, the token's name does. Raises `Denied`, and as `Client.app`.
        """
        if what:
            self.grant.check_all_tables(what)
        self.grant.check_app(name)
        client = self.service.client
        return (client.on_behalf_of(self.grant.name) if self.grant.name else client).app(name)

    async def whole_app(self, name: str, what: str) -> "StoredApp":
        """Find an app of which `what` is asked, in a thread. Raises as `app`."""
        return await self.service.in_thread(lambda: self.app(name, what))

    async def moment(
        self, app: str, ref: str, stage: str = "", *, table: str = "", min_offsets: Sequence[str] = (), wait_ms: int = 0
    ) -> FreshMoment:
        """A moment that may be read; of the newest as soon as it has read some records.

        With a table, it has it. Raises `Denied`, `NotYet`, and as `StoredApp.at`.
        """
        self.grant.check_app(app)
        if table:
            self.grant.check_table(table)
            stage = stage or (table if _VERSION.fullmatch(ref) else "")
        reading = await self._with(table, await self.service.reading(app, ref, stage, prefer_newest=self.is_passed_on))
        if not min_offsets:
            return reading
        wanted, tables = [_min_offset(each) for each in min_offsets], (table,) if table else ()

        def has_read(found: FreshMoment) -> bool:
            at = found.offsets(*tables)
            return all(topic in at and part < len(at[topic]) and at[topic][part] > last for topic, part, last in wanted)

        if not reading.knows_offsets(*tables):
            await self.service.in_thread(lambda: reading.offsets(*tables))
        known = reading.offsets(*tables)
        if unknown := {topic for topic, _, _ in wanted} - known.keys():
            raise NotFound("topic that is read", min(unknown), known)
        is_there = has_read(reading)
        if not is_there and reading.is_newest:
            later, is_there = await (await self.service.newest(app)).until(has_read, wait_ms / 1_000)
            reading = await self._with(table, later)
        if not is_there:
            raise NotYet(
                f"the state has not read {', '.join(min_offsets)} yet",
                offsets=reading.offsets(*tables),
                hint="offsets says the next that it reads of each partition; ask again, or wait longer (wait_ms)",
            )
        return reading

    async def _with(self, table: str, reading: FreshMoment) -> FreshMoment:
        """The moment with a table, by whatever name it had then. Raises `NotFound`."""
        if not table or reading.has(table):
            return reading
        having = await self.service.in_thread(lambda: reading.moment.having(table))
        return FreshMoment(having, reading.is_newest, reading.asked_for)

    def bounds(self, folder: str) -> Bounds:
        """What its SQL may take and see, of an app's folder."""
        options, grant = self.service.options, self.grant
        tables = None if grant.may_read("*") else grant.tables
        return Bounds(
            options.sql_s,
            options.sql_memory_mb,
            tables=tables,
            app="" if grant.may_read_app("*") else folder,
            secret=self.secret,
        )

    def question(self, reading: FreshMoment, ref: str, stage: str, sql: str, limit: int) -> Question:
        """What is asked of a moment in SQL, for `Statements.answer`."""
        cut, is_newest = reading.moment.cut, reading.is_newest
        return Question(
            app=cut.app,
            ref="" if is_newest else ref,
            stage=stage,
            versions=cut.versions,
            seen_ms=now_ms() if is_newest else 0,
            sql=sql,
            max_rows=min(limit, self.service.options.sql_rows),
            bounds=self.bounds(cut.app),
        )

    def document(self, data: object, *, headers: dict[str, str] | None = None, rows: int = 0) -> Answer:
        """A document of JSON."""
        return Answer(encoded(data), headers=headers or {}, rows=rows)

    def etag(self, *parts: object) -> str:
        """What is the same as long as the answer to these parts is."""
        return f'"{".".join(map(str, parts))}{".arrow" if self.wants_arrow else ""}"'


def event(name: str, data: object, number: int | None = None) -> bytes:
    """A server-sent event; `number` is its id."""
    # Rows are encoded a line each, and a line break would end the data.
    line = "" if number is None else f"id: {number}\n"
    return f"event: {name}\n{line}data: ".encode() + encoded(data).replace(b"\n", b"") + b"\n\n"


def _min_offset(text: str) -> tuple[str, int, int]:
    topic, partition, offset = text.rsplit(":", 2)
    return topic, int(partition), int(offset)


def arrow_bytes(table: pa.Table, metadata: dict[str, object]) -> bytes:
    """A stream of Arrow's IPC; what belongs to the answer beside its rows is in the schema's metadata, as JSON."""
    table = escaped(table).replace_schema_metadata({"slackwater": encoded(metadata)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data
