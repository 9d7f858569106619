"""Client of a server (`slackwater serve`), for users without access to the store: `sw.open("http://…")`.

Methods return objects of the classes that a client of the store returns. Methods that change an app are not here.
"""

from .moment import ServedMoment
from .served import ServedApp, Server

__all__ = ["ServedApp", "ServedMoment", "Server"]
