"""A fixed share of keys: a program that works on the rows of these alone.

The share is exact: what a stage makes of a key is made of all its records. So the rows of a stage that nothing chose
from before are chosen by its key, and a stage behind it must have that key in its own.
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
from ...store.sst.key_share import SHARES, KeyShare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Sample:
    """Which keys: those whose hash falls into the first `parts` of `SHARES`."""

    parts: int

    @classmethod
    def of(cls, text: str) -> Sample:
        """From a share as it is written: `1%`. Raises `Usage` for what is none between 0.01% and 100%."""
        number = text.strip().removesuffix("%")
        try:
            parts = round(float(number) * SHARES / 100)
        except ValueError:
            parts = 0
        if not text.strip().endswith("%") or not 1 <= parts <= SHARES:
            raise Usage(f"--keys is {text!r}; expected a share of all keys from 0.01% to 100%, such as 1%")
        return cls(parts)


def sampled(
    app: App, known: Mapping[str, Shape], names: Collection[str], sample: Sample
) -> tuple[App, dict[str, KeyShare]]:
    """The program over such rows, and by stage with a table the keys that these have.

    Of the stages `names`. Raises `Refused` where a stage would get some of the records of a key, or goes by the times
    of rows of all keys.
    """
    by: dict[str, tuple[str, ...]] = {}
    stages = dict(app.stages)
    for stage in app.in_order():
        if stage.name not in names:
            continue
        if known[stage.name].watermarks or known[stage.name].timed:
            raise _mixing(stage, "goes by a watermark, which the rows of all keys move on")
        chosen = set(_chosen(app, stage, by))
        if len(chosen) > 1:
            raise _mixing(stage, "reads rows of chosen keys beside others")
        (before,) = chosen
        if stage.state is None:
            by[stage.name] = before
        elif not before:
            by[stage.name] = key = app.key_of(stage)
            stages[stage.name] = replace(stage, transform=_choosing(stage, KeyShare(key, sample.parts)))
        elif {*before} <= {*app.key_of(stage)}:
            by[stage.name] = before
        else:
            others = f"has the key ({', '.join(app.key_of(stage))}), of which it would get some of the records"
            raise _mixing(stage, f"{others}: rows are chosen by ({', '.join(before)})")
    tables = {name: KeyShare(key, sample.parts) for name, key in by.items() if app.stages[name].state is not None}
    return App(app.name, stages, app.file), tables


def _chosen(app: App, stage: Stage, by: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    for writer in app.writers(stage).values():
        yield by[writer] if writer else ()


def _choosing(stage: Stage, share: KeyShare) -> Any:
    def transform(*frames: DataFrame) -> Any:
        made = stage.transform(*frames)
        return tuple(of_share(each, share) for each in made) if isinstance(made, tuple) else of_share(made, share)

    return transform


def _mixing(stage: Stage, why: str) -> Refused:
    return Refused(
        f"stage {stage.name!r} {why}",
        hint="--stage NAME tries the stages up to one before it; without --keys all keys are tried",
    )


def up_to(app: App, names: Collection[str]) -> tuple[str, ...]:
    """The stages of these names and all that they read from, upstream first; all when none is named. As `select`."""
    wanted = {stage.name for stage in app.select(tuple(names))}
    for stage in reversed(app.in_order()):
        if stage.name in wanted:
            wanted |= {writer for writer in app.writers(stage).values() if writer}
    return tuple(stage.name for stage in app.in_order() if stage.name in wanted)
