"""Settings of the command line and the Python API, read from arguments, environment and slackwater.toml.

The fields of `Settings` are the settings that the file may have, with their types and defaults.
"""

import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args

import msgspec
from msgspec import Meta, Struct

from .common.durations import parse_ms
from .common.validation import expand_home, nearest_hint
from .errors import Usage
from .pipeline.kafka.login import AUTH, FILE_SUFFIX, secret_files, with_secret_files_in
from .store.objects.counting import Prices
from .store.objects.s3_settings import S3Settings, load_s3_settings
from .store.versions.keys import check_topic, is_source

if TYPE_CHECKING:
    from .operations.key_search.key_fields import DeclaredFields
    from .pipeline.kafka.channels import KafkaChannels
    from .pipeline.kafka.protocol import Kafka
    from .pipeline.run.options import Options
    from .snapshot.bisect.invariant import Invariant
    from .snapshot.gc.reachable import Retention
    from .store.objects.protocol import ObjectStore
    from .store.read.cache import SstCache

FILE_NAME = "slackwater.toml"
NO_STORE = "no store root is configured"
_KAFKA_VARIABLE = "SLACKWATER_KAFKA_PROPERTIES_"
_KAFKA_AUTH_VARIABLE = "SLACKWATER_KAFKA_AUTH"

_Text = Annotated[str, Meta(min_length=1, description="a string that is not empty")]
_Bytes = Annotated[int, Meta(ge=0, description="a whole number of bytes")]


class _Rules(Struct, frozen=True):
    """Schema of retention rules in `[retention]`. Durations are not parsed yet."""

    all: Any = None
    hourly: Any = None
    daily: Any = None
    versions: Annotated[int, Meta(ge=1, description="a whole number of at least 1")] | None = None
    input: Any = None


class _Kafka(Struct, frozen=True):
    """Schema of the table `[kafka]`, which may replace the setting `kafka`."""

    brokers: _Text = ""
    auth: _Text = ""


class _Invariant(Struct, frozen=True):
    """Schema of a table `[invariants.NAME]`. The duration `every` is not parsed yet."""

    check: _Text | None = None
    where: _Text | None = None
    every: Any = "1m"
    on_failure: _Text = ""
    app: _Text = ""
    table: _Text = ""


class Settings(Struct, frozen=True, kw_only=True):
    """All settings of the product. A missing setting raises an error when it is first needed."""

    store: _Text | None = None
    brokers: _Text | None = msgspec.field(default=None, name="kafka")
    kafka_properties: dict[str, Any] = {}
    """Client properties of librdkafka, and those of `pipeline.kafka.login`. They may hold secrets: never print them."""
    hot: Annotated[str, Meta(description="a string")] = ""
    """Store root of the SSTs of new batches, such as a bucket of S3 Express One Zone; empty for the store itself."""
    cache: _Text = ""
    """Folder of the local SST cache; empty for the user's default folder."""
    cache_max_bytes: _Bytes = 10 << 30
    prefetch: Annotated[bool, Meta(description="true or false")] = True
    retention: dict[str, Any] = {}
    invariants: dict[str, Any] = {}
    forget: dict[str, Any] = {}
    prices: Any = Prices()
    """Prices of requests and storage; S3's list prices by default."""
    s3: Any = S3Settings()
    programs: Annotated[dict[str, str], Meta(description="a table of files, by app")] = {}
    """Path of the Python file that declares each app, by app name. Replays use this program by default."""

    def __repr__(self) -> str:
        return f"Settings(store={self.store!r}, kafka={self.brokers!r})"

    def retention_of(self, app: str, **overrides: Any) -> "Retention":
        """Return an app's own retention rules, or else the common rules, with `overrides` applied. Raises `Usage`."""
        from .snapshot.gc.reachable import Retention

        rules: Retention = self.retention.get(app) or self.retention.get("", Retention())
        return replace(rules, **{rule: value for rule, value in overrides.items() if value is not None})

    def declared_fields(self, options: Iterable[str] = ()) -> "DeclaredFields":
        """Return the record fields in which `forget` searches for keys, by table.

        The fields come from `[forget]` of the file, and from `options` of the form `TABLE=FIELD`. Raises `Usage` for an
        invalid option.
        """
        from .operations.key_search.key_fields import DeclaredFields

        fields = {table: [*paths] for table, paths in self.forget.items() if table != "registry"}
        for option in options:
            table, equals, field = option.partition("=")
            if not (table and equals and field):
                raise Usage(f"--field {option!r} is not TABLE=FIELD", hint="for example --field 'people=$.user.id'")
            fields.setdefault(table, []).append(field)
        registry = self.forget.get("registry", "")
        return DeclaredFields(fields, json.dumps({"registry": registry}) if registry else "")

    def store_root(self) -> str:
        return self.store or _raise_missing("store", NO_STORE, "s3://bucket/prefix or a folder", "--store ROOT")

    def open_store(self) -> "ObjectStore":
        from .store.hot.hot_store import open_store

        return open_store(self.store_root(), settings=self.s3)

    def open_cache(self) -> "SstCache":
        from .store.read.cache import SstCache

        return SstCache(self._cache_folder, self.cache_max_bytes)

    @property
    def _cache_folder(self) -> Path:
        return Path(self.cache or _cache_path(os.environ))

    def kafka(self) -> dict[str, str]:
        brokers = self.brokers or _raise_missing(
            "kafka", "no Kafka brokers are configured", "host:port", "--kafka HOST:PORT"
        )
        return {**self.kafka_properties, "bootstrap.servers": brokers}

    def open_kafka(self) -> "Kafka":
        """Create a Kafka client, which connects at its first request. Raises `Usage` without brokers."""
        from .pipeline.kafka.open import open_kafka

        return open_kafka(self.kafka(), self.open_store)

    def open_channels(self) -> "KafkaChannels | None":
        """Open the repartition topics; None if no brokers are configured."""
        if not self.brokers:
            return None
        from .pipeline.kafka.channels import KafkaChannels

        return KafkaChannels(self.open_kafka())

    def run_options(self, kafka: Mapping[str, str] | None = None) -> "Options":
        """Return the options of a run. `kafka` replaces the configured client properties. Raises `Usage`."""
        from .pipeline.run.options import Options

        return Options(
            store=self.store_root(),
            kafka=self.kafka() if kafka is None else with_secret_files_in(Path.cwd(), kafka),
            s3=self.s3,
            hot=self.hot,
            cache_folder=self._cache_folder,
            cache_bytes=self.cache_max_bytes,
            prefetch=self.prefetch,
            retention=self.retention_of,
        )


def load(
    *,
    store: str | None = None,
    kafka: str | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Load settings from arguments, environment variables and the nearest slackwater.toml.

    The file is searched in `folder` (by default the working folder) and its parents. Paths in the file are relative to
    the file. Kafka client properties come from `[kafka_properties]` of the file and, with higher precedence, from
    variables: `SLACKWATER_KAFKA_PROPERTIES_SASL_PASSWORD` is `sasl.password`; with `_FILE` at its end, the variable
    names a file with the value. Raises `Usage` if the file is not TOML, or has an unknown setting.
    """
    environ = os.environ if environ is None else environ
    parents = (folder or Path.cwd()).resolve()
    candidates = (parent / FILE_NAME for parent in (parents, *parents.parents))
    path = next((path for path in candidates if path.is_file()), None)
    settings = _read_file(path, environ) if path else Settings(s3=load_s3_settings(environ))
    variables = {
        name.removeprefix(_KAFKA_VARIABLE).lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(_KAFKA_VARIABLE) and value
    }
    if auth := environ.get(_KAFKA_AUTH_VARIABLE):
        variables[AUTH] = auth
    variables = with_secret_files_in(Path.cwd(), variables)
    # A variable for a value replaces a file for it, and the reverse.
    replaced = {f"{name}{FILE_SUFFIX}" for name in variables} | secret_files(variables).keys()
    kept = {name: value for name, value in settings.kafka_properties.items() if name not in replaced}
    properties = kept | variables
    return msgspec.structs.replace(
        settings,
        store=store or environ.get("SLACKWATER_STORE") or settings.store,
        hot=environ.get("SLACKWATER_HOT", settings.hot),
        brokers=kafka or environ.get("SLACKWATER_KAFKA") or settings.brokers or properties.get("bootstrap.servers"),
        kafka_properties=properties,
        cache=_cache_path(environ, settings.cache),
    )


def _cache_path(environ: Mapping[str, str], configured: str = "") -> str:
    user_cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slackwater" / "sst"
    return environ.get("SLACKWATER_CACHE") or configured or str(user_cache)


def _read_file(path: Path, environ: Mapping[str, str]) -> Settings:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Usage(f"{path} is not TOML: {error}", hint='a line looks like: store = "s3://bucket"') from None
    kafka: dict[str, Any] = {}
    if isinstance(values.get("kafka"), dict):
        kafka = _check_fields(path, "kafka", values.pop("kafka"), _Kafka, "setting of Kafka")
    values_found = _check_fields(path, "", values, Settings, "setting")

    def beside(setting: str, file: str) -> Path:
        return path.parent / expand_home(f"{path}: {setting}", file)

    for name in ("store", "hot"):
        if "://" not in (values_found.get(name) or "://"):
            values_found[name] = str(beside(name, values_found[name]).resolve())
    if "cache" in values_found:
        values_found["cache"] = str(beside("cache", values_found["cache"]))
    if "prices" in values_found:
        values_found["prices"] = Prices(**_check_fields(path, "prices", values_found["prices"], Prices, "price"))
    if "retention" in values_found:
        values_found["retention"] = _retention(path, values_found["retention"])
    values_found["programs"] = {
        app: str(beside(f"programs.{app}", file).resolve()) for app, file in values_found.get("programs", {}).items()
    }
    if "invariants" in values_found:
        tables = _check_is_table(path, "invariants", values_found["invariants"])
        values_found["invariants"] = {name: _invariant(path, name, table) for name, table in tables.items()}
    for table, fields in _check_is_table(path, "forget", values_found.get("forget", {})).items():
        is_text = isinstance(fields, str) if table == "registry" else _are_texts(fields)
        if not is_text:
            shape = "a URL" if table == "registry" else 'fields, such as ["who", "$.user.id"]'
            raise Usage(f"{path}: forget.{table} must be {shape}, not {fields!r}")
    values_found["s3"] = load_s3_settings(
        environ, _check_is_table(path, "s3", values_found.get("s3", {})), f"{path}: s3."
    )
    properties = dict(_properties(path, "", values_found.get("kafka_properties", {})))
    if "auth" in kafka:
        properties[AUTH] = kafka["auth"]
    values_found["kafka_properties"] = with_secret_files_in(path.parent, properties)
    return Settings(**values_found | {name: kafka[name] for name in kafka if name == "brokers"})


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(text, str) and text for text in values)


def _check_is_table(path: Path, name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Usage(f"{path}: {name} must be a table", hint=f"write [{name}] on a line above its settings")
    return value


def _check_fields(path: Path, name: str, table: object, kind: type[Struct], term: str) -> dict[str, Any]:
    """Return a TOML table's values, converted to the field types of `kind`. Nested tables are not checked.

    Raises `Usage` for an unknown field and for an invalid value. In messages, `term` is the noun for a field.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    checked = {}
    for key, value in _check_is_table(path, name, table).items():
        full_name = f"{name}.{key}" if name else key
        if key not in fields:
            raise Usage(
                f"{path} sets {full_name}, which is not a {term}{nearest_hint(key, fields)}",
                hint=f"the names are {', '.join(fields)}",
            )
        kinds = (fields[key].type, *get_args(fields[key].type))
        expected = [meta.description for field_kind in kinds for meta in getattr(field_kind, "__metadata__", ())]
        try:
            checked[fields[key].name] = msgspec.convert(value, fields[key].type) if expected else value
        except msgspec.ValidationError:
            raise Usage(f"{path}: {full_name} must be {expected[0]}, not {value!r}") from None
    return checked


def _retention(path: Path, table: object) -> "dict[str, Retention]":
    from .snapshot.gc.reachable import Retention

    entries = _check_is_table(path, "retention", table)
    own = {app: rules for app, rules in entries.items() if isinstance(rules, dict) and app != "input"}
    common = {rule: value for rule, value in entries.items() if rule not in own}
    retention = {}
    for app, rules in (("", common), *own.items()):
        name = f"retention.{app}" if app else "retention"
        values = _check_fields(path, name, rules, _Rules, "rule of retention")
        versions, topics = values.pop("versions", None), values.get("input")
        if isinstance(topics, dict):
            del values["input"]
        else:
            topics = {}
        by_topic = {
            topic if is_source(topic) else check_topic(topic): parse_ms(f"{path}: {name}.input.{topic}", topics[topic])
            for topic in topics
        }
        spans = {f"{rule}_ms": parse_ms(f"{path}: {name}.{rule}", value) for rule, value in values.items()}
        retention[app] = Retention(versions=versions, input_topics=by_topic, **spans)
    return retention


def _invariant(path: Path, name: str, table: object) -> "Invariant":
    from .snapshot.bisect.invariant import Invariant

    full_name = f"invariants.{name}"
    values = _Invariant(**_check_fields(path, full_name, table, _Invariant, "setting of an invariant"))
    if (values.check is None) == (values.where is None):
        raise Usage(
            f"{path}: {full_name} must have either check or where",
            hint="check: a condition that must hold; where: a query that returns the rows that are wrong",
        )
    every_ms = parse_ms(f"{path}: {full_name}.every", values.every)
    where, check = values.where or "", values.check or ""
    return Invariant(name, where, every_ms, values.on_failure, values.app, check, values.table)


def _properties(path: Path, prefix: str, table: object) -> Iterable[tuple[str, str]]:
    """Yield names and values of client properties. TOML parses an unquoted `sasl.password = …` as a nested table."""
    for key, value in _check_is_table(path, "kafka_properties", table).items():
        if isinstance(value, dict):
            yield from _properties(path, f"{prefix}{key}.", value)
        elif isinstance(value, str | int | float):
            yield f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise Usage(f"{path}: kafka property '{prefix}{key}' must be a string, a number or a boolean")


def _raise_missing(key: str, sentence: str, shape: str, flag: str) -> NoReturn:
    raise Usage(
        sentence,
        hint=f'give {flag}, or set SLACKWATER_{key.upper()}, or write {key} = "…" ({shape}) in {FILE_NAME}',
    )
