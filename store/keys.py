"""Names of objects under a store root. The only place that knows the layout."""

import re

from .errors import Refused, Usage

__all__ = [
    "REMOVING",
    "app_info",
    "boundaries",
    "boundary",
    "captured",
    "channels",
    "check_key",
    "check_name",
    "collection",
    "manifest",
    "manifests",
    "operations",
    "removed",
    "removing",
    "request",
    "requests",
    "runner",
    "runners",
    "snapshot",
    "snapshot_objects",
    "snapshots",
    "sst",
    "ssts",
    "stages",
    "version_of",
]

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
# Listings are XML, which cannot say control characters; lone surrogates are not text.
_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_MAX_SEGMENT_BYTES = 255

REMOVING = "_removing"
"""The folder among an app's stages that says that it is being removed: no stage can have this name."""


def check_name(what: str, name: str) -> str:
    """Return `name` if it may stand in an object key and a topic name.

    Raises:
        Usage: it may not.
    """
    if not _NAME.fullmatch(name):
        raise Usage(
            f"{what} name {name!r} is not usable: expected 1 to 63 of a-z, 0-9, '_' and '-', "
            "starting with a letter or a digit"
        )
    return name


def check_key(key: str) -> str:
    """Return `key` if every store can hold it and it stays under the root.

    Raises:
        Refused: it is empty, absolute, has an empty, '.' or '..' segment, a control character, or a segment longer
            than file systems take; a manifest that was tampered with is one way to meet such a key.
    """
    segments = key.split("/")
    if _UNSPEAKABLE.search(key) or any(segment in ("", ".", "..") for segment in segments):
        raise Refused(f"object key {key!r} is not usable: expected names joined by '/', without '.' and '..'")
    if len(key) * 4 > _MAX_SEGMENT_BYTES and any(len(segment.encode()) > _MAX_SEGMENT_BYTES for segment in segments):
        raise Refused(f"object key {key!r} is not usable: expected names of at most {_MAX_SEGMENT_BYTES} bytes")
    return key


def app_info(app: str) -> str:
    """Who the app is; its presence is the app's existence."""
    return f"{app}/app.json"


def channels(app: str) -> str:
    """Where a clone's copied records lie in its own topics."""
    return f"{app}/channels.json"


def boundaries(app: str) -> str:
    """Prefix of what may exist of the app's versions."""
    return f"{app}/boundaries/"


def boundary(app: str, number: int) -> str:
    """One boundary; names sort as numbers do."""
    return f"{app}/boundaries/{number:020}.json"


def collection(app: str) -> str:
    """What a collection writes first, to learn the time of storage's clock."""
    return f"{app}/gc.json"


def removing(app: str) -> str:
    """The note that the app is being removed. It lies among the stages, so that whoever lists them sees it."""
    return f"{app}/stages/{REMOVING}/app.json"


def removed(app: str) -> str:
    """The note that there was an app of this name, and who removed it."""
    return f"{app}/removed.json"


def stages(app: str) -> str:
    """Prefix of all stages."""
    return f"{app}/stages/"


def manifests(app: str, stage: str) -> str:
    """Prefix of one stage's manifests."""
    return f"{app}/stages/{stage}/manifests/"


def manifest(app: str, stage: str, version: int) -> str:
    """One version's manifest; names sort as numbers do."""
    return f"{app}/stages/{stage}/manifests/{version:020}.json"


def version_of(manifest_key: str) -> int:
    """The version in a manifest's key."""
    return int(manifest_key.rsplit("/", 1)[-1].removesuffix(".json"))


def ssts(app: str, stage: str) -> str:
    """Prefix of one stage's SSTs."""
    return f"{app}/stages/{stage}/sst/"


def sst(app: str, stage: str, ulid: str) -> str:
    """One SST."""
    return f"{app}/stages/{stage}/sst/{ulid}.parquet"


def snapshots(app: str) -> str:
    """Prefix of all snapshots."""
    return f"{app}/snapshots/"


def snapshot(app: str, name: str) -> str:
    """One named snapshot."""
    return f"{app}/snapshots/{name}.json"


def captured(app: str, name: str, ulid: str) -> str:
    """Records in flight that belong to one named snapshot."""
    return f"{app}/snapshots/{name}/channels/{ulid}.parquet"


def snapshot_objects(app: str, name: str) -> str:
    """Prefix of what one named snapshot keeps besides its own document."""
    return f"{app}/snapshots/{name}/"


def requests(app: str) -> str:
    """Prefix of what is asked of the running app."""
    return f"{app}/requests/"


def request(app: str, snapshot_id: str) -> str:
    """One request for a snapshot."""
    return f"{app}/requests/{snapshot_id}.json"


def runners(app: str) -> str:
    """Prefix of the signs of life of the app's runners."""
    return f"{app}/runners/"


def runner(app: str, writer: str) -> str:
    """One runner's sign of life."""
    return f"{app}/runners/{writer}.json"


def operations(app: str) -> str:
    """Prefix of the log of operations."""
    return f"{app}/log/"
