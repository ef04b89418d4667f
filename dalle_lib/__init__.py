"""The kit with which volunteers train one text-to-image transformer together over the internet.

Importing this package changes nothing and loads nothing heavy: take what you need from its modules.
"""

__version__ = "0.1.0"
