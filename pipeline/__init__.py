"""A running app on Spark and Kafka: the public API, sources, batches, sinks, the runner, development servers.

| room | contents |
|---|---|
| `kafka/` | access to Kafka, by librdkafka and in memory |
| `dev/` | servers for development, the demo and tests |
| `source/` | planning and reading of batches |
| `telemetry/` | spans and lineage |
| `api/` | declarations of a program |
| `spark/` | the session, its workers, tables as batch sources |
| `messages/` | decoding and encoding of records |
| `upkeep/` | compaction, SST downloads and the input archive, beside batches |
| `batch/` | one batch, on the driver and in tasks |
| `publish/` | sinks |
| `reject/` | records for which a batch fails |
| `run/` | claiming, starting, watching and stopping an app |

Rules about batches are in `state`, consistent cuts in `snapshot`, stored objects in `store`. Import the modules rather
than this package: the package stays empty, so that Spark is loaded only by code that uses Spark.
"""
