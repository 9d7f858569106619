"""The options of a run: the class `Options`, with checks of its values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...common.durations import parse_ms
from ...common.validation import check_finite, check_whole
from ...errors import Usage
from ...snapshot.gc.reachable import Retention
from ...store.objects.s3_settings import S3Settings

_MIN_GC_INTERVAL_MS = 60_000
"""Minimum interval of collections, because each collection reads all remaining manifests."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run. Raises `Usage` for a number out of range."""

    store: str
    kafka: Mapping[str, str] = field(repr=False)
    """librdkafka client properties, `bootstrap.servers` among them."""
    s3: S3Settings | None = None
    """S3 client settings; None to read them from the environment."""
    hot: str = ""
    """Store root of the SSTs of batches; empty for the store itself."""
    stages: tuple[str, ...] = ()
    """Stages to run; empty for all."""
    until_caught_up: bool = False
    """True to stop once the stages have processed all records present at the start, and all resulting rows."""
    max_records: int | None = None
    """Maximum number of records of each input per batch; None for the program's setting."""
    trigger_ms: int | None = None
    max_unflushed: int | None = None
    """Maximum number of unflushed versions of a stage; 0 for none, None for the program's setting."""
    accept_loss: bool = False
    master: str | None = None
    """Spark's master URL; None for Spark's own configuration."""
    patience_s: float = 120
    cache_folder: Path = field(default_factory=lambda: Path.home() / ".cache" / "slackwater" / "sst")
    cache_bytes: int = 10 << 30
    prefetch: bool = True
    """True to download whole SSTs in the background; False to read byte ranges from the store."""
    spark_conf: dict[str, str] = field(default_factory=dict, repr=False)
    py_files: tuple[str, ...] = ()
    compaction_threads: int = 1
    """Maximum concurrent merges of a stage on the driver; 0 leaves all merges to `slackwater compact`."""
    retention: Callable[[str], Retention] = lambda _app: Retention()
    """Returns an app's retention rules, by the app's name. Garbage collection deletes history outside these rules."""
    archive: bool = True
    gc_every_ms: int | None = 3_600_000
    """Interval between garbage collections; None if this runner does not collect."""
    until: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """End offsets of users' topics, by name; other topics are read to their ends."""
    publishes: bool = True
    """True to publish the rows of sinks; False to keep the rows in the sinks' internal topics."""

    def __post_init__(self) -> None:
        if self.max_records is not None:
            check_whole("max_records", self.max_records, 1)
        if self.max_unflushed is not None:
            check_whole("max_unflushed", self.max_unflushed, 0)
        for name in ("cache_bytes", "compaction_threads"):
            check_whole(name, getattr(self, name), 0)
        check_finite("patience_s", self.patience_s, 0)


def parse_gc_interval(name: str, text: str) -> int | None:
    """Return the interval between garbage collections in ms, at least a minute; None for `off`. Raises `Usage`."""
    if text == "off":
        return None
    every_ms = parse_ms(name, text)
    if every_ms < _MIN_GC_INTERVAL_MS:
        raise Usage(f"{name} is {text!r}; expected off, or a duration of one minute or more")
    return every_ms
