"""A peer seen from outside: its settings, its process, and what it leaves in its folder. Loads no hivemind."""
