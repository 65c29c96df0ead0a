"""Measurements of the adapter, one module each; `spec-fsm bench` runs them."""
