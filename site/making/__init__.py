"""Steps of the site's build: each module makes pages, pictures or tables of one kind from the repository.

A step is a function `make(made)` that writes below the folder `made` (`site/_made/`), and is listed in `site/build.py`:

- `made/pages/` holds pages (markdown, notebooks), as they are named on the site;
- `made/static/` holds files that the browser loads as they are, below `_static/` on the site;
- pictures lie anywhere else, and a page names them from the site's root, as in `/_made/drawings/epoch.svg`.
"""
