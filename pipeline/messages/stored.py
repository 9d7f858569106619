"""Messages that are stored, decoded as a stage's `decode(...)` does, for `operations.erasure`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...common.validation import installing
from ...errors import Refused, SlackwaterError
from .schema import NO_SCHEMA, schema_ids

if TYPE_CHECKING:
    from .decode import Bad
    from .registry import Registry

_PATIENCE_S = 10.0
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StoredFormats:
    """Decodes messages by schemas that a registry has."""

    patience_s: float = _PATIENCE_S

    def decoded(self, how: str, messages: pa.Array, /) -> tuple[list[tuple[pa.Array, Rows]], Mapping[int, str]]:
        """As `operations.erasure.matching.Formats`; without a subject by the schema that each message names."""
        from .decode import open_reader, read_batch
        from .registry import Registry

        try:
            said = json.loads(how)
            known = Registry.of(said["registry"], self.patience_s)
            if subject := said.get("subject", ""):
                schema = known.latest(subject, said.get("version"))
                reader = open_reader(schema, said.get("message", ""))
                values, bad = read_batch(messages, reader, schema.kind, known.by_id)
                return [(values, np.arange(len(messages)))], _reasons(bad)
            return self._by_their_own(known, messages)
        except ImportError as error:
            raise Refused(f"messages cannot be decoded here: {error}", hint=installing("registry")) from None
        except (ValueError, KeyError, TypeError):
            raise Refused(f"{how!r} is no description of messages that is known here") from None

    def _by_their_own(
        self, known: Registry, messages: pa.Array
    ) -> tuple[list[tuple[pa.Array, Rows]], Mapping[int, str]]:
        from .decode import open_reader, read_batch

        ids = schema_ids(messages.cast(pa.binary()))
        parts, reasons = list[tuple[pa.Array, Rows]](), dict[int, str]()
        for number in np.unique(ids).tolist():
            at = np.flatnonzero(ids == number)
            try:
                if number == NO_SCHEMA:
                    raise Refused("no magic byte 0 and schema id before it")
                schema = known.by_id(number)
                values, bad = read_batch(messages.take(pa.array(at)), open_reader(schema), schema.kind, known.by_id)
            except SlackwaterError as error:
                reasons |= dict.fromkeys(at.tolist(), f"schema id {number}: {error.sentence}")
            else:
                parts.append((values, at))
                reasons |= {int(at[row]): why for row, why in _reasons(bad).items()}
        return parts, reasons


def _reasons(bad: tuple[Bad, ...]) -> dict[int, str]:
    return {one.row: one.why for one in bad}
