"""The version of the kit, which run cards may ask for."""

from functools import cache

__version__ = "0.3.0"


def project_page() -> str:
    """Return the address of the kit's source, as its installed package names it."""
    return _address("Repository")


def document(name: str) -> str:
    """Return the address of a document of the kit, such as `organiser.md`."""
    return f"{_address('Documentation').replace('/tree/', '/blob/')}/{name}"


@cache
def _address(what: str) -> str:
    from importlib.metadata import metadata

    urls = metadata("dalle-lib").get_all("Project-URL")
    return next(url.split(", ", 1)[1] for url in urls if url.startswith(what))
