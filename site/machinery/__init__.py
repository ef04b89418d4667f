"""What turns the site's pages into HTML: settings of Sphinx that need code, and what is mended in its pages."""
