"""The Spark session, its JVM and Python workers, where tasks go, what is sent to them, and whose error one was."""

__all__ = [
    "conf",
    "fan_out",
    "homes",
    "interpreter",
    "jvm",
    "places",
    "plans",
    "query_errors",
    "session",
    "shipping",
    "stderr_filter",
    "user_errors",
    "warm_up",
]
