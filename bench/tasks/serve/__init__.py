"""Measurements of what is served: keys warm and cold, beside a job, and the page."""
