"""Where the store and the brokers are: flags, then the environment, then the nearest slackwater.toml."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Usage
from ..store.objects.s3.settings import as_variables, exported, settings_in
from . import prices, retention
from .humane import nearest

if TYPE_CHECKING:
    from ..pipeline.kafka.channels import KafkaChannels
    from ..snapshot.gc.retention import Retention
    from ..store.objects.protocol import ObjectStore
    from ..store.read.cache import SstCache
    from ..store.versions.prices import Prices

__all__ = ["FILE", "Settings", "load"]

FILE = "slackwater.toml"

_KEYS = (
    "cache",
    "cache_max_bytes",
    "cache_memory_bytes",
    "kafka",
    "kafka_properties",
    "prefetch",
    "prices",
    "retention",
    "s3",
    "store",
)
_CACHE_MAX_BYTES = 10 << 30
_KAFKA_VARIABLE = "SLACKWATER_KAFKA_PROPERTIES_"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a verb needs to reach the outside. Absent parts are errors only once they are asked for."""

    store: str | None
    """Store root, or None when nothing names one."""
    brokers: str | None
    kafka_properties: Mapping[str, str] = field(repr=False)
    """Client properties of librdkafka. They may hold secrets: never printed."""
    cache_folder: Path
    cache_max_bytes: int
    cache_memory_bytes: int = 0
    """What the cache's hot tier may take of this machine's memory; 0 for none."""
    prefetch: bool = True
    """Whether `run` fetches SSTs beside the batches."""
    retention_table: Mapping[str, Any] = field(default_factory=dict)
    """`[retention]` of the file, checked, with a table for each app that has rules of its own."""
    prices_table: Mapping[str, Any] = field(default_factory=dict)
    """`[prices]` of the file, checked."""
    s3: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment that say how S3 is talked to: `[s3]` of the file, and those of the environment."""

    def retention(self, app: str, **said: "str | int | None") -> "Retention":
        """What of an app's history to keep: the app's own table in the file, else the common one, then what is said.

        Raises:
            Usage: what is said is no span of time.
        """
        from .retention import retention_of

        return retention_of(self.retention_table, app, said)

    def prices(self) -> "Prices":
        """What the store takes: the file's prices, S3's for those that it does not set."""
        from ..store.versions.prices import Prices

        return Prices(**self.prices_table)

    def store_root(self) -> str:
        """The store root. Raises `Usage` when nothing names one."""
        if not self.store:
            raise _missing("store", "the store root", "s3://bucket/prefix or a folder", "--store ROOT")
        return self.store

    def open_store(self) -> "ObjectStore":
        """The store. Raises `Usage` when nothing names one, `Unavailable` when it does not answer."""
        from ..store.objects.open import open_store

        return open_store(self.store_root())

    def open_cache(self) -> "SstCache":
        """The local cache of SSTs that all verbs share."""
        from ..store.read.cache import SstCache

        return SstCache(self.cache_folder, self.cache_max_bytes)

    def kafka(self) -> dict[str, str]:
        """Client properties, always with `bootstrap.servers`. Raises `Usage` when nothing names brokers."""
        if not self.brokers:
            raise _missing("kafka", "the Kafka brokers", "host:port", "--kafka HOST:PORT")
        return {**self.kafka_properties, "bootstrap.servers": self.brokers}

    def open_channels(self) -> "KafkaChannels | None":
        """The topics between stages; None when nothing says where Kafka is."""
        if not self.brokers:
            return None
        from ..pipeline.kafka.channels import KafkaChannels

        return KafkaChannels(self.kafka())


def load(
    *,
    store: str | None = None,
    kafka: str | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Settings from the flags, then `environ`, then the nearest file from `folder` upwards.

    `environ` is this process's and `folder` the current one when None. A relative path in the file means one
    beside the file. Kafka client properties come from the file's `[kafka_properties]` and, before those, from
    variables: `SLACKWATER_KAFKA_PROPERTIES_SASL_PASSWORD` is `sasl.password`.

    The file's `[s3]` becomes variables of this process, where `environ` is None: every store that is opened here, and
    every process that is started from here, finds them there.

    Raises:
        Usage: the file is not TOML, or says what nobody understands.
    """
    mine = environ is None
    environ = os.environ if environ is None else environ
    path = _nearest(folder or Path.cwd())
    values = _read(path) if path else {}
    from_file = values.get("store")
    if from_file and path and "://" not in from_file:
        from_file = str((path.parent / Path(from_file).expanduser()).resolve())
    cache = environ.get("SLACKWATER_CACHE")
    if not cache and path and "cache" in values:
        cache = str(path.parent / Path(values["cache"]).expanduser())
    properties = dict(values.get("kafka_properties", {}))
    properties.update(_properties_in(environ))
    s3 = {**values.get("s3", {}), **exported(environ)}
    settings_in(s3)
    if mine:
        os.environ.update(s3)
    return Settings(
        store=store or environ.get("SLACKWATER_STORE") or from_file,
        brokers=kafka or environ.get("SLACKWATER_KAFKA") or values.get("kafka") or properties.get("bootstrap.servers"),
        kafka_properties=properties,
        cache_folder=Path(cache) if cache else _user_cache(environ),
        cache_max_bytes=values.get("cache_max_bytes", _CACHE_MAX_BYTES),
        cache_memory_bytes=values.get("cache_memory_bytes", 0),
        prefetch=values.get("prefetch", True),
        retention_table=values.get("retention", {}),
        prices_table=values.get("prices", {}),
        s3=s3,
    )


def _nearest(folder: Path) -> Path | None:
    folder = folder.resolve()
    candidates = (parent / FILE for parent in (folder, *folder.parents))
    return next((path for path in candidates if path.is_file()), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Usage(f"{path} is not TOML: {error}", hint='a line looks like: store = "s3://bucket"') from None
    for key in values:
        if key not in _KEYS:
            raise Usage(
                f"{path} sets {key!r}, which is not a setting{nearest(key, _KEYS)}",
                hint=f"the settings are {', '.join(_KEYS)}",
            )
    for key in ("store", "kafka", "cache"):
        if key in values and not (isinstance(values[key], str) and values[key]):
            raise Usage(f"{path}: {key} must be a string that is not empty, not {values[key]!r}")
    for key in ("cache_max_bytes", "cache_memory_bytes"):
        size = values.get(key, 0)
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise Usage(f"{path}: {key} must be a whole number of bytes, not {size!r}")
    if not isinstance(values.get("prefetch", True), bool):
        raise Usage(f"{path}: prefetch must be true or false, not {values['prefetch']!r}")
    if "retention" in values:
        retention.check(path, values["retention"])
    if "prices" in values:
        prices.check(path, values["prices"])
    if "s3" in values:
        if not isinstance(values["s3"], dict):
            raise Usage(f"{path}: s3 must be a table", hint="write [s3] above the settings")
        values["s3"] = as_variables(values["s3"], str(path))
    values["kafka_properties"] = _as_properties(path, values.get("kafka_properties", {}))
    return values


def _as_properties(path: Path, table: object) -> dict[str, str]:
    """Properties as librdkafka takes them; `sasl.password = …` without quotes is a table to TOML."""
    if not isinstance(table, dict):
        raise Usage(f"{path}: kafka_properties must be a table", hint="write [kafka_properties] above them")
    properties: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            nested = _as_properties(path, value)
            properties.update({f"{key}.{rest}": nested_value for rest, nested_value in nested.items()})
        elif isinstance(value, bool):
            properties[key] = str(value).lower()
        elif isinstance(value, str | int | float):
            properties[key] = str(value)
        else:
            raise Usage(f"{path}: kafka property {key!r} must be a string, a number or a boolean")
    return properties


def _properties_in(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(_KAFKA_VARIABLE).lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(_KAFKA_VARIABLE) and value
    }


def _user_cache(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "slackwater" / "sst"


def _missing(key: str, what: str, shape: str, flag: str) -> Usage:
    return Usage(
        f"nothing says where {what} {'are' if what.endswith('s') else 'is'}",
        hint=f'give {flag}, or set SLACKWATER_{key.upper()}, or write {key} = "…" ({shape}) in {FILE}',
    )
