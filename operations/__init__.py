"""Operations on an app, such as clone, rewind and export. Each package has a page of the same topic in the docs.

| package | contents |
|---|---|
| `staging/` | clone, trial, promote |
| `program_changes.py` | a changed program over stored state |
| `repair/` | rewind, reset, edit, rejected records |
| `erasure/` | forget |
| `disaster_recovery/` | replicate, recover |
| `attach/` | following a running query or topic |
| `from_spark/` | the reader of Spark checkpoints, adopt |
| `from_kafka/` | the reader of compacted topics and of Kafka Streams' changelogs |
| `exchange/` | init, export, Iceberg |
| `debugging/` | replay, the record that caused a change, check |
| `maintenance/` | compact, protect, remove, filling the input archive, tokens |

Operations run between the batches of an app, not inside them. Pure functions make the decisions, from data that
`snapshot` and `store` read. Other functions carry the decisions out, with Spark and Kafka.
"""
