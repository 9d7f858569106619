"""The Spark session, its JVM and Python workers, what is sent to them, and whose error one was."""

__all__ = [
    "blame",
    "conf",
    "failures",
    "fan_out",
    "interpreter",
    "jvm",
    "plans",
    "quiet",
    "session",
    "shipping",
    "warm_up",
    "worker",
]
