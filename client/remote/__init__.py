"""A store that is asked over HTTP, by whoever cannot reach it or may not: `sw.open("http://…")` gives its apps.

What is read is what reading the store would give, of the same classes. What changes an app is not here.
"""

from .moment import ServedMoment
from .served import ServedApp, Server

__all__ = ["ServedApp", "ServedMoment", "Server"]
