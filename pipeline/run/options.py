"""How to run an app. Values only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...common.durations import parse_ms
from ...common.validation import finite, whole
from ...errors import Usage
from ...snapshot.gc.retention import Retention
from ...store.objects.s3.settings import S3Settings

_LEAST_GC_MS = 60_000
"""Each collection reads all manifests that stay."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run an app. Raises `Usage` where a number is not one that could work."""

    store: str
    kafka: Mapping[str, str] = field(repr=False)
    """librdkafka client properties, `bootstrap.servers` among them."""
    s3: S3Settings | None = None
    """How S3 is talked to; None for what the environment says."""
    stages: tuple[str, ...] = ()
    """Run only these; empty for all."""
    until_caught_up: bool = False
    """Stop when all that is there at the start is read, and what follows from it."""
    max_records: int | None = None
    """At most so many input records a batch; this and the next two are None for what the program says."""
    trigger_ms: int | None = None
    """Shortest time between batches."""
    max_unflushed: int | None = None
    """How many versions a stage may run ahead of its last commit; 0 for none."""
    accept_loss: bool = False
    """Go on without input records that are gone."""
    master: str | None = None
    """Spark's master URL; None for Spark's own configuration."""
    patience_s: float = 120
    """How long a broker or a store may be away."""
    cache_folder: Path = field(default_factory=lambda: Path.home() / ".cache" / "slackwater" / "sst")
    """Where this machine keeps SSTs for look-ups."""
    cache_bytes: int = 10 << 30
    prefetch: bool = True
    """Fetch SSTs beside the batches of which else byte ranges would be read."""
    spark_conf: dict[str, str] = field(default_factory=dict, repr=False)
    """Further Spark settings; they win over those of slackwater."""
    py_files: tuple[str, ...] = ()
    """Python files and zips that the program and its tasks import."""
    compaction_threads: int = 1
    """Merges that go on at once beside the batches of each stage; 0 leaves them to `slackwater compact`."""
    retention: Callable[[str], Retention] = lambda _app: Retention()
    """What of an app's history to keep, by its name: the rest is collected now and then."""
    archive: bool = True
    """Archive what is read, where `retention` says so."""
    gc_every_ms: int | None = 3_600_000
    """How long from one collection to the next; None for none by this runner."""
    until: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Read users' topics, by name, up to these offsets, and no further; the others to their ends."""
    publishes: bool = True
    """Publish what sinks are given; without, it waits in their internal topics, also that of a clone's."""

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
