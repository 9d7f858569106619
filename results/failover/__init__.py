"""Replicas, recoveries and drills, as they are shown."""
