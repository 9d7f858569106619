"""A channel's columns, from the Spark DDL of its manifest, as Arrow types."""

import pyarrow as pa

from ...errors import Corruption
from ...store.sst.arrow_types import arrow_type
from ...store.versions.column_types import parse_ddl


def arrow_of(ddl: str) -> pa.Schema:
    """The schema of "`name` type, `name` type". Raises `Corruption` for anything else."""
    try:
        return pa.schema([(name, arrow_type(kind)) for name, kind in parse_ddl(ddl)])
    except ValueError:
        raise Corruption(f"a channel's columns are {ddl!r}; expected a Spark DDL string", object_key="") from None
    except KeyError as error:
        raise Corruption(f"a channel has a column of type {error}, which is not known here", object_key="") from None
