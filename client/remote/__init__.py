"""A store that is asked over HTTP, by whoever cannot reach it or may not: `sw.open("http://…")` gives its apps.

What is read is what reading the store would give, of the same classes. What changes an app is not here.
"""

from .served import ServedApp, ServedMoment, Server

__all__ = ["ServedApp", "ServedMoment", "Server"]
