"""The authority of one or more runs as an HTTP service: who proves a Hub identity gets an access token.

`create_app` makes the application; `dalle-lib auth-server` serves it. What it knows lies in one folder.
"""

from dalle_lib.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "app": ("create_app",),
        "database": ("Database",),
        "refusals": ("Refusal",),
        "settings": ("Folder", "RunSettings", "ServerSettings"),
    },
)
