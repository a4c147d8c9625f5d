"""What builds and documents lastword; run from the checkout, never installed."""
