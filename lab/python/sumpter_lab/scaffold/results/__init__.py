"""Rows of an experiment: their schema, files, tables, and figures made of them."""
