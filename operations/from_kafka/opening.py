"""Opening of a topic for `attach`, with the formats that the user names, or the formats of the last attachment."""

from collections.abc import Mapping

import pyarrow as pa

from ...common.program_file import load_function
from ...errors import Refused, SlackwaterError, Usage
from ...pipeline.kafka.protocol import Kafka
from ...pipeline.messages.registry import Registry
from ...store.objects.protocol import ObjectStore
from ...store.sst.arrow_types import schema_from_ddl
from ...store.versions import history
from ..attach.rows import valid_name
from .formats import Format, Plain, Windowed
from .records import PATIENCE_S
from .topic import FollowedTopic, stored_columns
from .typed_formats import Decoded, Json, Registered

PREFIX = "kafka:"
_CHANGELOG = "-changelog"
_WINDOWED = {"windowed": False, "session": True}
_DEFAULTS = {"key": "string", "value": "json"}
_HINT = (
    f"choose one of {', '.join(Plain.TYPES)}, json, registry, or FILE:FUNCTION for a decoder; for keys also "
    "windowed:FORMAT and session:FORMAT"
)


def default_stage(topic: str, app: str) -> str:
    """Return the default stage name for a topic.

    Kafka Streams names changelogs `<application.id>-<store>-changelog`.
    """
    return valid_name(topic.removeprefix(f"{app}-").removesuffix(_CHANGELOG), "topic")


def open_topic(
    store: ObjectStore, kafka: Kafka, source: str, names: tuple[str, str], formats: Mapping[str, str]
) -> FollowedTopic:
    """Open the topic `kafka:TOPIC` for a stage. `names` are the names of app and stage.

    `formats` has the user's formats by option: `key`, `value`, `columns` (types of fields, `NAME TYPE, …`), `registry`.
    Missing options are taken from the last attachment. Raises `Usage` for an unknown format, `NotFound` if the topic
    does not exist, and `Refused` if its records cannot be decoded.
    """
    topic = source.removeprefix(PREFIX)
    head = history.head(store, *names)
    attached = head.attached if head is not None else None
    stored = attached.formats if attached is not None and attached.query == topic else {}
    named = _DEFAULTS | dict(stored) | {name: text for name, text in formats.items() if text}
    key, value = (open_format(side, named[side], topic, named) for side in ("key", "value"))
    return FollowedTopic(kafka, topic, named, key, value, stored_columns(head) if attached is not None else None)


def open_format(side: str, text: str, topic: str, named: Mapping[str, str]) -> Format:
    """Return the format that a user named for keys or values. Raises `Usage`, `NotFound`, and errors of a decoder."""
    prefix, _, inner = text.partition(":")
    if side == "key" and prefix in _WINDOWED and inner:
        is_store = topic.endswith(_CHANGELOG)
        return Windowed(open_format(side, inner, topic, named), _WINDOWED[prefix], is_store)
    declared = _declared(named.get("columns", "")) if side == "value" else {}
    if text in Plain.TYPES:
        return Plain(text)
    if text == "json":
        return Json(declared)
    if text == "registry":
        if not named.get("registry"):
            raise Usage(f"--{side} registry needs the registry's URL", hint="--registry http://localhost:8081")
        return Registered(Registry.at_url(named["registry"], PATIENCE_S), f"{topic}-{side}")
    if ":" not in text:
        raise Usage(f"--{side} {text!r} is no format", hint=_HINT)
    meaning = f"FUNCTION turns the bytes of a {side} into a dict, or a single value"
    try:
        return Decoded(text, load_function(text, meaning), declared)
    except SlackwaterError:
        raise
    except Exception as error:
        raise Refused(
            f"{text.rpartition(':')[0]} does not run: {type(error).__name__}: {error}", hint=meaning
        ) from error


def _declared(ddl: str) -> dict[str, pa.DataType]:
    try:
        schema = schema_from_ddl(ddl)
    except (KeyError, ValueError) as error:
        unknown = f"there is no type {error}" if isinstance(error, KeyError) else error
        raise Usage(
            f"--columns {ddl!r} cannot be read: {unknown}",
            hint="--columns 'amount double, customer struct<id: bigint>'",
        ) from None
    return dict(zip(schema.names, schema.types, strict=True))
