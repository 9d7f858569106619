"""Simulation of whole apps in one process, from one seed, with faults of storage, Kafka, machines and people.

It runs the product's own code, except Spark, which a small engine replaces. Functions of stages take and return Arrow
tables.
"""

from .app import Simulation
from .scheduler import Killed, SimulatedProcess, Stuck
from .world import Faults, World

__all__ = ["Faults", "Killed", "SimulatedProcess", "Simulation", "Stuck", "World"]
