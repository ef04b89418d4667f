"""A run tried on one machine, over links as slow as its volunteers'."""
