"""The version of the kit, which run cards may ask for."""

__version__ = "0.2.0"
