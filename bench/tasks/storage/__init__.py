"""Measurements of what keeps, copies, hands on and forgets what is stored."""
