"""The world file: what it may say, reading it, and holding it against a job and the catalogues.

Invariant: nothing here has a clock; what cannot be is refused before anything starts.
"""
