"""Sphinx' settings of the site, which `make site` builds from the Markdown of this repository.

The source folder is the repository itself: pages stay where a forge shows them, and a link between
two of them leads to the same place in both. What a forge does that Sphinx does not is in
sumpter_site: the sidebar out of docs/README.md, pages for files of other kinds, the API's objects.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

project = "Sumpter"
author = "The Sumpter authors"
version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
release = version
language = "en"

extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "sumpter_site.navigation",
    "sumpter_site.files",
    "sumpter_site.reference",
]
root_doc = "README"
include_patterns = [
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("docs/*.md", "docs/user/**.md", "docs/design/**.md", "docs/measurements/**.md"),
    "lab/records/index.md",
]
# Not searched for pages: large, and none of them has one.
exclude_patterns = [".*", "target", "build", "fuzz", "crates", "python", "tests", "**/__pycache__"]
nitpicky = True
highlight_language = "text"

# The depth to which forges give headings an anchor, and pages link one.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"Sumpter {version}"
html_short_title = "Sumpter"
html_favicon = "static/mark.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1a5fb4",
        "color-brand-content": "#1a5fb4",
        "color-brand-visited": "#1a5fb4",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8ab8f0",
        "color-brand-content": "#8ab8f0",
        "color-brand-visited": "#8ab8f0",
    },
    "navigation_with_keys": True,
    "top_of_page_buttons": [],
}

# A prompt is not part of a command, and what a console fence prints is not copied.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_copy_empty_lines = False

linkcheck_timeout = 20
# Examples of addresses, and anchors that scripts make.
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1|HOST)"]
linkcheck_anchors = False
