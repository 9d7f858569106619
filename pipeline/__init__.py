"""Runs streaming apps on Spark and Kafka: the public API, sources, batches, sinks, the runner, development servers.

| package | contents |
|---|---|
| `kafka/` | access to Kafka, by librdkafka and in memory |
| `dev/` | servers for development, the demo and tests |
| `source/` | planning and reading of batches |
| `telemetry/` | spans and lineage |
| `api/` | declarations of a program |
| `spark/` | the Spark session, its workers, and tables as batch sources |
| `messages/` | decoding and encoding of records |
| `upkeep/` | background work: compaction, SST downloads, the input archive |
| `batch/` | one batch, on the driver and in tasks |
| `publish/` | sinks |
| `reject/` | rejected records: finding, storing and retrying records that make a batch fail |
| `run/` | claiming, starting, watching and stopping an app |

Rules about batches are in `state`, consistent cuts in `snapshot`, stored objects in `store`. Import the modules and not
this package, so that Spark is loaded only by code that uses Spark.
"""
