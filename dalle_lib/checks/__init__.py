"""Checks of whether this machine can take part in a run, and a report for when it cannot."""
