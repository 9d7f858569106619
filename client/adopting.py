"""A query of Spark's that becomes a stage of a program: `slackwater adopt`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Refused, Usage
from ..results import adopted as shown
from ..results.shown import Result
from ..store.versions import keys
from .backends import Backends

if TYPE_CHECKING:
    from ..keep.adopt.adoption import Step
    from ..pipeline.adopt.adopting import Query
    from ..pipeline.adopt.shadow import Shadow


def query_of(
    checkpoint: str,
    code: str,
    stage: str,
    app: str = "",
    offsets: Sequence[str] = (),
    last_batch: int | None = None,
    attached: str = "",
) -> "Query":
    """What is adopted, as what. Raises `Usage` for a name that no stage can have."""
    from ..pipeline.adopt.adopting import Query

    keys.check_name("stage", stage)
    return Query(checkpoint, code, stage, app, tuple(offsets), last_batch, attached)


def adopt(
    client: Backends,
    query: "Query",
    tell: Callable[[str], None],
    *,
    master: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    dry_run: bool,
) -> Result:
    """Make the stage, of which `tell` hears a line for each version; with `dry_run`, only say what it is made of."""
    from ..pipeline.adopt.adopting import opened

    kafka = client.known_channels("from which the stage goes on").kafka
    batches = range(0)

    def told(step: "Step") -> None:
        tell(shown.step(step, batches))

    with opened(
        query, client.store, client.cache, kafka, by=client.by, master=master, conf=spark_conf, on_step=told
    ) as found:
        if found.plan is None or found.adoption is None:
            assert found.done is not None  # noqa: S101  one of both is there
            return shown.adopted(found.done, query.path)
        batches = found.plan.batches
        if dry_run:
            return shown.to_adopt(found.plan)
        return shown.adopted(found.adoption.run(), query.path)


@contextmanager
def shadow_of(
    client: Backends, query: "Query", *, master: str | None = None, spark_conf: Mapping[str, str] | None = None
) -> "Iterator[Shadow]":
    """The stage beside the query, from the last batch of `query` on. Nothing is written into the store."""
    from ..pipeline.adopt.adopting import opened
    from ..pipeline.adopt.shadow import shadowing

    kafka = client.known_channels("from which the stage reads").kafka
    with opened(query, client.store, client.cache, kafka, by=client.by, master=master, conf=spark_conf) as found:
        if found.adoption is not None:
            found.adoption.batches = found.adoption.batches[-1:]
        with shadowing(found, client.cache, kafka) as shadow:
            yield shadow


def emit_program(query: "Query", *, master: str | None = None, spark_conf: Mapping[str, str] | None = None) -> Result:
    """Write a program that declares the stage, into a file that is new.

    Raises `Refused` where there is one, or no declaration takes the state over.
    """
    from ..pipeline.adopt.program_text import program_text
    from ..pipeline.attach.opened import opened

    file = Path(query.path)
    if file.exists():
        raise Refused(f"{file} exists already", hint="--emit-program writes a new file")
    if not file.parent.is_dir():
        raise Usage(f"{file.parent} is no folder, in which {file.name} would be written")
    with opened(query.checkpoint, master=master, conf=spark_conf or {}) as found:
        committed = found.committed()
        offsets = found.batch(committed[-1]).offsets if committed else {}
        topics = [name for name in offsets if not name.startswith("source-")]
        text = program_text(
            found.tables, topics or ["TOPIC"], query.app or "app", query.stage, found.where, found.query
        )
    file.write_text(text)
    return shown.emitted(query.path, query.stage, query.checkpoint)
