"""Restrict a program to the rows of a fixed share of keys.

The share is exact: each sampled key has all its records. The first stage with state samples rows by its key, and each
stage downstream must have that key in its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...errors import Refused, Usage
from ...pipeline.api.app import App
from ...pipeline.api.stage import Stage
from ...pipeline.batch.schemas import Shape
from ...pipeline.spark.plans import of_share
from ...store.sst.hashing import SHARES, KeyShare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Sample:
    """Keys whose hash falls into the first `parts` of `SHARES`."""

    parts: int

    @classmethod
    def of(cls, text: str) -> Sample:
        """Parse a share such as `1%`. Raises `Usage` outside of 0.01% to 100%."""
        number = text.strip().removesuffix("%")
        try:
            parts = round(float(number) * SHARES / 100)
        except ValueError:
            parts = 0
        if not text.strip().endswith("%") or not 1 <= parts <= SHARES:
            raise Usage(f"--keys is {text!r}; expected a share of all keys from 0.01% to 100%, such as 1%")
        return cls(parts)


def sampled(
    app: App, shapes: Mapping[str, Shape], names: Collection[str], sample: Sample
) -> tuple[App, dict[str, KeyShare]]:
    """Return the program restricted to sampled rows, and the sampled keys of each stage with a table.

    Only the stages `names` are restricted. Raises `Refused` if a stage would get only some of a key's records, or
    depends on a watermark, which rows of all keys advance.
    """
    by: dict[str, tuple[str, ...]] = {}
    stages = dict(app.stages)
    for stage in app.in_order():
        if stage.name not in names:
            continue
        if shapes[stage.name].watermarks or shapes[stage.name].timed:
            raise _mixed_keys(stage, "depends on a watermark, which rows of all keys advance")
        parent_keys = set(_parent_keys(app, stage, by))
        if len(parent_keys) > 1:
            raise _mixed_keys(stage, "reads sampled rows together with rows of all keys")
        (parent_key,) = parent_keys
        if stage.state is None:
            by[stage.name] = parent_key
        elif not parent_key:
            by[stage.name] = key = app.key_of(stage)
            stages[stage.name] = replace(stage, transform=_sampling(stage, KeyShare(key, sample.parts)))
        elif {*parent_key} <= {*app.key_of(stage)}:
            by[stage.name] = parent_key
        else:
            fact = f"has the key ({', '.join(app.key_of(stage))}), of which it would get only some records"
            raise _mixed_keys(stage, f"{fact}: rows are sampled by ({', '.join(parent_key)})")
    tables = {name: KeyShare(key, sample.parts) for name, key in by.items() if app.stages[name].state is not None}
    return App(app.name, stages, app.file), tables


def _parent_keys(app: App, stage: Stage, by: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    for writer in app.writers(stage).values():
        yield by[writer] if writer else ()


def _sampling(stage: Stage, share: KeyShare) -> Any:
    def transform(*frames: DataFrame) -> Any:
        result = stage.transform(*frames)
        return (
            tuple(of_share(frame, share) for frame in result) if isinstance(result, tuple) else of_share(result, share)
        )

    return transform


def _mixed_keys(stage: Stage, why: str) -> Refused:
    return Refused(
        f"stage {stage.name!r} {why}",
        hint="use --stage NAME for an earlier stage, or leave out --keys",
    )


def up_to(app: App, names: Collection[str]) -> tuple[str, ...]:
    """Return these stages and all upstream ones, upstream first; all stages for no names. Raises as `select`."""
    selected = {stage.name for stage in app.select(tuple(names))}
    for stage in reversed(app.in_order()):
        if stage.name in selected:
            selected |= {writer for writer in app.writers(stage).values() if writer}
    return tuple(stage.name for stage in app.in_order() if stage.name in selected)
