"""A changed program over stored state: what differs, what of it can be kept, and the versions that keep it.

What decides is pure; programs come in as values (`fold.fits`), because Spark is known to `pipeline` alone. Not here:
how an SST of other columns is read (`store.sst.evolution`), or where a new input begins (Kafka says, by `pipeline`).
"""
