"""A changed program over stored state: what differs, what of it can be kept, and the versions that keep it.

What decides is pure; programs come in as values (`declared`), because Spark is known to `pipeline` alone. Not here: how
an SST of other columns is read (`store.sst.evolution`), or where a new input begins (Kafka says, through `pipeline`).
"""

__all__ = ["columns", "declared", "migrate", "migration", "plan", "rename", "stage_names", "step", "words"]
