"""`sumpter console`: a coordinator's jobs as a live page in a browser.

One thread looks at the coordinator, as `sumpter top` does; every browser gets what it saw last. The
page, its style and its script are files of this package, and it asks for nothing else.
"""
