"""What a reward function meets: the trajectory document, the verdict, its declaration, the wire.

Invariant: the standard library and nothing else of this project but `core.errors`, because these
very files travel with a packaged function to platforms where the project is not installed.
"""
