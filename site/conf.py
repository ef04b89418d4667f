"""Sphinx's settings for the site; `site/build.py` runs it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from making.repository import REF, SLUG
from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

from dalle_lib.version import __version__

lexers["mermaid"] = TextLexer()

project = "dalle-lib"
author = "The dalle-lib contributors"
copyright = f"2026, {author}"
release = version = __version__
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "machinery.scripts",
]
exclude_patterns = ["_made"]
nitpicky = True

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "off"

html_title = "dalle-lib"
html_theme = "sphinx_book_theme"
html_static_path = ["_static", "_made/static"]
html_css_files = ["dalle.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "repository_url": f"https://github.com/{SLUG}",
    "repository_branch": REF,
    "use_repository_button": True,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navigation_with_keys": False,
    "show_toc_level": 2,
}
