"""Backends: one technology a file, each imported only when it is used."""
