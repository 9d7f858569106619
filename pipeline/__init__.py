"""The PySpark runtime: the public API, sources, the state operator, the runner, Kafka and the embedded servers.

Everything that needs Spark or Kafka lives here. What is true of moments of an app (cuts, snapshots, diff) is in
`moments`, bisect in `search`, clone and migration in `keep`, what is durable in `store`; none of it may be written anew
here. Import the modules, not this package: it stays empty so that nobody waits for Spark who does not use it.
"""
