"""Changing what is stored from outside the runner: compact, rescale, retire a stage, remove an app.

Each change is one commit by compare-and-swap, as the runner's are.
"""
