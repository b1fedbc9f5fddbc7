"""The RollArt paper's evaluation (arXiv 2512.22560), run again on modelled hardware.

Rows of two kinds: micro-benchmarks (m), on which the parameters were fitted, and end-to-end results
(e), which are held out: the fit was made before the first of them was run, and nothing is changed
on their account. Owns the rows, their arms and the parameters; simulating is `runtimes.sim`'s.
"""
