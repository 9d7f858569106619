"""Client of `slackwater serve`, for users without access to the store: `sw.open("http://…")` returns its apps.

Reading returns the same classes as reading the store. Methods that change an app are not here.
"""

from .moment import ServedMoment
from .served import ServedApp, Server

__all__ = ["ServedApp", "ServedMoment", "Server"]
