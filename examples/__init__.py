"""Examples that run: real input through the real service."""
