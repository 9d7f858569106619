"""Consistent moments of an app: operations that resolve, take, query, compare, search, verify, retain and change them.

| room | contents |
|---|---|
| `cut/` | refs, the graph of stages, consistent cuts, lineage |
| `under_way/` | what goes on in an app: runners, holds, edits asked for; what goes beside it (`exclusion`) |
| `take/` | taking, pinning and removing snapshots; the audit log |
| `query/` | SQL, look-ups, export, `log` |
| `diff/` | rows that differ between two moments; the history of a key |
| `status/` | lag, what an app costs |
| `bisect/` | the search for the commit that broke a predicate |
| `verify/` | recomputing that a cut is what it claims |
| `gc/` | retention, reachability, collection |
| `change/` | a decided change of all stages at one cut |

No Spark here. Kafka comes in through one Protocol, `cut.kafka_topics.KafkaTopics`. Import the modules one by
one: only those that query load DuckDB and pyarrow.
"""

__all__ = ["bisect", "change", "cut", "diff", "gc", "query", "status", "take", "under_way", "verify"]
