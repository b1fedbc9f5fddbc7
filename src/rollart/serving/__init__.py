"""A model behind an OpenAI-compatible endpoint, on this project's own engine."""
