"""What a run looks like: the same charts in notebooks, in the demo and on pages."""
