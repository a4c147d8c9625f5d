"""The airports of the world as a compacted changelog."""
