"""Functions that damage the stored objects of the app of `fan_in`, and one that verifies the app."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from slackwater.snapshot.cut.stored import Snapshot
from slackwater.snapshot.verify.verify import Report, verify
from slackwater.store.versions import codec, keys
from slackwater.store.versions.manifest import Manifest

from tests.support.fan_in import FanIn
from tests.support.hostile import as_it_is


def report(app: FanIn, ref: str = "bank@good", *, deep: bool = False) -> Report:
    """Verify a moment of the bank."""
    return verify(app.store, ref, now_ms=10**15, deep=deep, reader=app.topics if deep else None)


def only(found: Report) -> str:
    """Return the message of the only difference."""
    (difference,) = found.differences
    return difference.message


Change = Callable[[Manifest], Manifest]


def change(app: FanIn, stage: str, version: int, how: Change) -> None:
    """Replace a manifest, without validation."""
    key = keys.manifest("bank", stage, version)
    manifest = codec.decode(app.store.get(key), Manifest, key=key)
    app.store.put(key, as_it_is(how(manifest)))


def of_input(name: str, **fields: Any) -> Change:
    """Return a function that changes fields of an input in a manifest."""

    def how(manifest: Manifest) -> Manifest:
        return replace(manifest, inputs=manifest.inputs | {name: replace(manifest.inputs[name], **fields)})

    return how


def of_output(name: str, **fields: Any) -> Change:
    """Return a function that changes fields of an output in a manifest."""

    def how(manifest: Manifest) -> Manifest:
        return replace(manifest, outputs=manifest.outputs | {name: replace(manifest.outputs[name], **fields)})

    return how


def put_snapshot(app: FanIn, snapshot: Snapshot) -> None:
    """Replace the snapshot `good`, without validation."""
    app.store.put(keys.json_object(keys.snapshots("bank"), "good"), as_it_is(snapshot))
