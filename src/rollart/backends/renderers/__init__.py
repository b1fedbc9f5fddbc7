"""Renderers: between messages and tokens, by a chat template."""
