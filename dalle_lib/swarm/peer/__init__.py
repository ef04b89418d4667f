"""A peer from inside: what runs in its process."""
