"""What runs inside a peer's process."""
