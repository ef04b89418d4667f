"""A stand-in for the Hugging Face Hub on this machine: repositories, users, OAuth. Needs the extra `server`."""
