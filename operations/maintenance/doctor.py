"""Diagnosis of a machine: Java, Spark, the development servers, the store, Kafka, and the package's extras."""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from itertools import islice
from typing import Literal

from ...common import instants, runtime
from ...common.install import install_hint
from ...common.validation import nearest_hint
from ...errors import ObjectExists, SlackwaterError, Usage
from ...pipeline.dev.ivy import ivy_jars
from ...pipeline.dev.java import MissingTool, check_spark_runs_on, find_java
from ...pipeline.dev.kafka import EmbeddedKafka
from ...pipeline.dev.s3 import EmbeddedS3
from ...pipeline.kafka.open import open_kafka, wait_until_available
from ...store.objects.open import open_store
from ...store.objects.protocol import HasClock, ObjectStore, exists
from ...store.objects.s3_settings import S3Settings

PATIENCE_S = 5.0
_MAX_SKEW_MS = 60_000
"""Maximum difference of two clocks in ms. A ref may lie at most a minute in the future."""
_PROBES = "_doctor/"
_OWN_EXTRAS = ("bench", "dev", "local", "spark")
"""Extras without a diagnosis: extras for developers, and extras that the diagnoses `java` and `spark` cover."""
_REQUIREMENT = re.compile(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """State of one component that slackwater uses.

    `ok`: it works. `absent`: it does not exist and was not requested. `missing`: it was requested and does not exist.
    `failed`: it is configured and does not work.
    """

    name: str
    state: Literal["ok", "absent", "missing", "failed"]
    detail: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configured store root and Kafka client properties; None if not configured."""

    store: str | None
    kafka: Mapping[str, str] | None
    s3: S3Settings


def examine(configured: Configuration, requested: Collection[str], *, writes: bool) -> Iterator[Diagnosis]:
    """Yield a diagnosis of each component, in order. Requested components that do not exist are `missing`.

    With `writes`, puts and deletes one object under the store root; otherwise changes nothing. Raises `Usage` for an
    unknown name in `requested`.
    """
    names = names_to_request()
    for name in requested:
        if name not in names:
            raise Usage(f"{name!r} is not used by slackwater{nearest_hint(name, names)}", hint=", ".join(names))
    yield Diagnosis("python", "ok", f"{sys.version.split()[0]} ({sys.executable})")
    spark = _spark()
    diagnoses = (_java(needed=spark.state == "ok"), spark, _dev(), *_store(configured, writes=writes))
    for diagnosis in (*diagnoses, _kafka(configured.kafka), *(_extra(*extra) for extra in _extras().items())):
        is_missing = diagnosis.state == "absent" and diagnosis.name in requested
        yield replace(diagnosis, state="missing") if is_missing else diagnosis


def names_to_request() -> tuple[str, ...]:
    return ("java", "spark", "dev", "store", "kafka", *_extras())


def _java(*, needed: bool) -> Diagnosis:
    try:
        java = find_java("Spark")
        for spark in _versions("pyspark")[:1]:
            check_spark_runs_on(java, spark)
    except MissingTool as error:
        # If pyspark is installed, it is meant to be used.
        return Diagnosis("java", "missing" if needed else "absent", error.message, error.hint)
    return Diagnosis("java", "ok", f"{java.version}, from {java.origin} ({java.path})")


def _spark() -> Diagnosis:
    spec = find_spec("pyspark")
    if spec is None:
        return Diagnosis("spark", "absent", "pyspark is not installed", install_hint("local"))
    version = next(iter(_versions("pyspark")), "of a Spark installation")
    return Diagnosis("spark", "ok", f"pyspark {version} ({spec.origin})")


def _dev() -> Diagnosis:
    servers = (EmbeddedKafka.jars, EmbeddedS3.jars)
    absent = [jars for jars in servers if not jars.is_complete]
    if not absent:
        return Diagnosis(
            "dev", "ok", f"{' and '.join(jars.name for jars in servers)} are in {servers[0].folder.parent}"
        )
    download = f"{' and '.join(jars.name for jars in absent)}, about {sum(jars.megabytes for jars in absent)} MB"
    try:
        tool = absent[0].maven or f"Ivy in {ivy_jars(download)}"
    except MissingTool as error:
        return Diagnosis("dev", "absent", error.message, error.hint)
    return Diagnosis("dev", "ok", f"{download}, will be downloaded by {tool}")


def _store(configured: Configuration, *, writes: bool) -> Iterator[Diagnosis]:
    if configured.store is None:
        step = "name one: --store, SLACKWATER_STORE, or store in slackwater.toml"
        yield Diagnosis("store", "absent", "no store root is configured", step)
        return
    try:
        store = open_store(configured.store, patience_s=PATIENCE_S, settings=configured.s3)
        folders = tuple(islice(store.list_folders(""), 1_000))
    except SlackwaterError as error:
        yield Diagnosis("store", "failed", error.message, error.hint)
        return
    yield Diagnosis("store", "ok", f"{store.url} answers, {len(folders)} folders")
    yield _checked("rights", lambda: _rights(store, writes=writes))
    yield _checked("clocks", lambda: _clocks(store))


def _checked(name: str, check: Callable[[], Diagnosis]) -> Diagnosis:
    try:
        return check()
    except SlackwaterError as error:
        return Diagnosis(name, "failed", error.message, error.hint)


def _rights(store: ObjectStore, *, writes: bool) -> Diagnosis:
    key = f"{_PROBES}{runtime.ulid()}"
    # A store that refuses to list or read still answers, with an error.
    exists(store, key)
    if not writes:
        return Diagnosis("rights", "ok", "listing and reading work; --write also tries conditional puts and a deletion")
    store.put_if_absent(key, b"1")
    try:
        store.put_if_absent(key, b"2")
    except ObjectExists:
        return Diagnosis("rights", "ok", "list, read, write, write only once, delete")
    finally:
        store.delete(key)
    step = "use an S3 server with conditional writes, or a local folder"
    return Diagnosis("rights", "failed", f"{store.url} ignores 'If-None-Match: *': commits would be lost", step)


def _clocks(store: ObjectStore) -> Diagnosis:
    if not isinstance(store, HasClock):
        return Diagnosis("clocks", "ok", "this machine's own")
    began_ms = instants.now_ms()
    server_ms = store.now_ms()
    if server_ms is None:
        return Diagnosis("clocks", "ok", "the store does not report its time")
    skew_ms = server_ms - (began_ms + instants.now_ms()) // 2
    detail = f"the store's clock and this machine's differ by {abs(skew_ms) / 1_000:.0f} s"
    if abs(skew_ms) <= _MAX_SKEW_MS:
        return Diagnosis("clocks", "ok", detail)
    return Diagnosis("clocks", "failed", detail, "synchronise this machine's clock (NTP)")


def _kafka(properties: Mapping[str, str] | None) -> Diagnosis:
    if properties is None:
        step = "name the brokers: --kafka, SLACKWATER_KAFKA, or kafka in slackwater.toml"
        return Diagnosis("kafka", "absent", "no Kafka brokers are configured", step)

    def ask() -> Diagnosis:
        kafka = open_kafka(properties)
        wait_until_available(kafka, PATIENCE_S)
        return Diagnosis("kafka", "ok", f"{kafka.name} answers, {len(kafka.partition_counts())} topics may be read")

    return _checked("kafka", ask)


def _extras() -> dict[str, tuple[str, ...]]:
    """Return the packages that each of slackwater's extras needs."""
    extras: dict[str, tuple[str, ...]] = {}
    for requirement in metadata.requires("slackwater") or ():
        if (match := _REQUIREMENT.match(requirement)) and match[2] not in _OWN_EXTRAS:
            extras[match[2]] = (*extras.get(match[2], ()), match[1])
    return dict(sorted(extras.items()))


def _versions(package: str) -> tuple[str, ...]:
    return tuple(distribution.version for distribution in metadata.distributions(name=package))


def _extra(name: str, packages: tuple[str, ...]) -> Diagnosis:
    absent = [package for package in packages if not _versions(package)]
    if absent:
        return Diagnosis(name, "absent", f"not installed: {', '.join(absent)}", install_hint(name))
    return Diagnosis(name, "ok", f"the extra [{name}] is installed")
