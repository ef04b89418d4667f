"""The version of the kit, which run cards may ask for."""

__version__ = "0.2.0"


def project_page() -> str:
    """Return the address of the kit's source, as its installed package names it."""
    from importlib.metadata import metadata

    urls = metadata("dalle-lib").get_all("Project-URL")
    return next(url.split(", ", 1)[1] for url in urls if url.startswith("Repository"))
