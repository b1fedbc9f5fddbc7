"""Environments that the package brings: FrozenLake as text, and any Gymnasium environment."""
