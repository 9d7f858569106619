"""Operations on an app, in one package for each page of the docs. No operation runs inside a batch.

| package | contents |
|---|---|
| `staging/` | clone, trial, promote |
| `program_changes/` | a changed program over stored state |
| `repair/` | rewind, reset, edit, rejected records |
| `erasure/` | forget |
| `disaster_recovery/` | replicate, recover |
| `from_spark/` | attach, adopt, and the reader of Spark checkpoints |
| `exchange/` | init, export, Iceberg |
| `debugging/` | replay, the record behind a change, check |
| `maintenance/` | compact, protect, remove, filling the input archive, tokens |

Decisions are made by pure functions of data that `snapshot` and `store` read. Other functions carry the decisions out,
with Spark and Kafka.
"""
