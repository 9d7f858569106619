"""Garbage collection: retention rules, reachable versions with reasons, and deletion of unreachable objects."""
