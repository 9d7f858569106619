"""How to run an app. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...durations import parse_ms
from ...errors import Usage
from ...keep.gc.retention import Retention
from ...store.objects.s3.settings import S3Settings
from ...validation import finite, whole

_LEAST_GC_MS = 60_000
"""Each collection reads all manifests that stay."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run an app.

    Attributes:
        store: The store root.
        kafka: librdkafka client properties, `bootstrap.servers` among them.
        s3: How S3 is talked to; None for what the environment says.
        stages: Run only these; empty for all.
        until_caught_up: Stop when all that is there at the start is read, and what follows from it.
        max_records: At most so many input records a batch, whatever the program says; None for what it says.
        trigger_ms: Shortest time between batches, likewise.
        max_unflushed: How many versions a stage may run ahead of its last commit, likewise; 0 for none.
        accept_loss: Go on without input records that are gone.
        master: Spark's master URL; None for Spark's own configuration.
        patience_s: How long a broker or a store may be away.
        cache_folder: Where this machine keeps SSTs for look-ups.
        cache_bytes: How much of it.
        prefetch: Fetch SSTs beside the batches of which else byte ranges would be read.
        spark_conf: Further Spark settings; they win over those of slackwater.
        py_files: Python files and zips that the program and its tasks import.
        compaction_threads: Merges that go on at once beside the batches of each stage; 0 leaves them to
            `slackwater compact`.
        retention: What of an app's history to keep, by its name: the rest is collected now and then.
        gc_every_ms: How long from one collection to the next; None for none by this runner.
        until: Read users' topics, by name, up to these offsets, and no further; the others to their ends.
        channels: Repartition topics that are another app's, which these stages only read: by their declared name, the
            topic.

    Raises:
        Usage: A number is not one that could work.
    """

    store: str
    kafka: Mapping[str, str] = field(repr=False)
    s3: S3Settings | None = None
    stages: tuple[str, ...] = ()
    until_caught_up: bool = False
    max_records: int | None = None
    trigger_ms: int | None = None
    max_unflushed: int | None = None
    accept_loss: bool = False
    master: str | None = None
    patience_s: float = 120
    cache_folder: Path = field(default_factory=lambda: Path.home() / ".cache" / "slackwater" / "sst")
    cache_bytes: int = 10 << 30
    prefetch: bool = True
    spark_conf: dict[str, str] = field(default_factory=dict, repr=False)
    py_files: tuple[str, ...] = ()
    compaction_threads: int = 1
    retention: Callable[[str], Retention] = lambda _app: Retention()
    gc_every_ms: int | None = 3_600_000
    until: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    channels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_records is not None:
            whole("max_records", self.max_records, 1)
        if self.max_unflushed is not None:
            whole("max_unflushed", self.max_unflushed, 0)
        for name in ("cache_bytes", "compaction_threads"):
            whole(name, getattr(self, name), 0)
        finite("patience_s", self.patience_s, 0)


def gc_every_ms(what: str, text: str) -> int | None:
    """How often to collect, as it is said: a span of a minute or more, or `off`, for None. Raises `Usage`."""
    if text == "off":
        return None
    every_ms = parse_ms(what, text)
    if every_ms < _LEAST_GC_MS:
        raise Usage(f"{what} is {text!r}; expected off, or a span of one minute or more")
    return every_ms
