"""The run's own eyes and memory: who takes part, how it goes, what was contributed, and its checkpoints."""
