"""Rules of the app `pair`, in a separate file."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def book(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Add a batch's entries to the accounts, and emit the entries."""
    num = pc.add(pc.fill_null(state["n"], 0), np.bincount(rows["_key"].to_numpy()))
    added = rows.group_by("_key", use_threads=False).aggregate([("amount", "sum")])["amount_sum"]
    return pa.table({"n": num, "balance": pc.add(pc.fill_null(state["balance"], 0), added)}), rows
