"""Sphinx's settings for the site; `site/build.py` runs it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from making import figures
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
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx.ext.githubpages",
    "machinery.pages",
]
exclude_patterns = ["_made"]
templates_path = ["_templates"]
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "substitution"]
myst_substitutions = figures.substitutions()
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"

html_title = "dalle-lib"
html_theme = "sphinx_book_theme"
html_static_path = ["_static", "_made/static"]
html_css_files = ["icons.css", "dalle.css", "pages.css"]
html_copy_source = False
html_show_sourcelink = False
html_favicon = "_static/mark.svg"
html_theme_options = {
    "repository_url": f"https://github.com/{SLUG}",
    "repository_branch": REF,
    "logo": {"text": "dalle-lib", "image_light": "_static/mark.svg", "image_dark": "_static/mark.svg"},
    "icon_links": [{"name": "Source on GitHub", "url": f"https://github.com/{SLUG}", "icon": "fa-brands fa-github"}],
    "navbar_start": ["navbar-logo.html"],
    "navbar_center": ["site-links.html"],
    "navbar_persistent": ["search-button-field.html"],
    "navbar_end": ["theme-switcher.html", "navbar-icon-links.html"],
    "article_header_start": [],
    "article_header_end": [],
    "footer_content_items": ["site-footer.html"],
    "secondary_sidebar_items": ["page-toc.html"],
    "search_bar_text": "Search this site",
    "show_toc_level": 2,
    "toc_title": "On this page",
    "back_to_top_button": False,
}
html_sidebars = {"**": ["sbt-sidebar-nav.html"]}
html_context = {
    "default_mode": "auto",
    "site_links": [
        ("join", "Join"),
        ("draw", "Draw"),
        ("runs", "Runs"),
        ("dashboard", "Dashboard"),
        ("calculator", "Calculator"),
        ("method", "Method"),
    ],
}
"""The ways in at the top of every page: see _templates/site-links.html."""
