"""Tests of what examples/ ships."""
