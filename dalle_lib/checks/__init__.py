"""Whether this machine can take part in a run, and what to tell when it cannot."""
