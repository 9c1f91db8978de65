"""What the site does with the repository's Markdown, beside what Sphinx and MyST do."""
