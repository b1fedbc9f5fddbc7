"""Generation engines."""
