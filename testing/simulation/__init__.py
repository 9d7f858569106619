"""Simulation of whole apps: one process, one seed, faults of storage, Kafka, machines and people.

The product's own code runs, except Spark, whose place a small engine takes. Functions of stages get and
return Arrow tables.
"""

from .app import Simulation
from .scheduler import Killed, SimulatedProcess, Stuck
from .world import Faults, World

__all__ = ["Faults", "Killed", "SimulatedProcess", "Simulation", "Stuck", "World"]
