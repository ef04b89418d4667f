"""A disk without room, for tests of what goes on without it."""

import resource
from contextlib import contextmanager


@contextmanager
def full_disk():
    """Let this process make no file longer, as if there were no room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
