"""What an organiser does with a run: make its keys, publish it, change it, invite people to it."""
