"""Consistent moments of an app: operations that resolve, take, query, compare, search, verify, retain and change them.

| room | contents |
|---|---|
| `cut/` | refs, the graph of stages, consistent cuts, lineage |
| `under_way/` | runners, holds and edit requests; rules for operations that may run at once (`exclusion`) |
| `take/` | taking, pinning and removing snapshots; the audit log |
| `query/` | SQL, look-ups, export, `log` |
| `diff/` | rows that differ between two moments; the history of a key |
| `status/` | lag of the stages, cost of an app |
| `bisect/` | search for the commit at which a predicate turned bad |
| `verify/` | checks that a cut is consistent, complete and undamaged |
| `gc/` | retention, reachability, collection |
| `change/` | migrations, rewinds, clones and promotions: changes of all stages at one cut |

This package does not use Spark, and uses Kafka only through the Protocol `cut.kafka_topics.KafkaTopics`. Import its
modules one by one: only modules for queries load DuckDB and pyarrow.
"""

__all__ = ["bisect", "change", "cut", "diff", "gc", "query", "status", "take", "under_way", "verify"]
