"""Operations on an app from outside its batches, a room for each page of the docs. Nothing here runs inside a batch.

| room | contents |
|---|---|
| `staging/` | clone, trial, promote |
| `program_changes/` | a changed program over stored state |
| `repair/` | rewind, reset, edit, rejected records |
| `erasure/` | forget |
| `disaster_recovery/` | replicate, recover |
| `from_spark/` | attach, adopt, and the checkpoint that they read |
| `exchange/` | init, export, Iceberg |
| `debugging/` | replay, the record behind a change, check |
| `maintenance/` | compact, protect, remove, the archive by hand, tokens |

Decisions are pure functions over what `snapshot` and `store` read; Spark and Kafka carry them out.
"""
