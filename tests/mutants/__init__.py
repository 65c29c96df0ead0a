"""Mutants of the adapter: one small change each in a function that runs in a server.

`python -m mutants.run` draws 300 of them by a committed seed, plays histories with each on the real
scheduler and worker, and writes `docs/adapter-mutants.md`.
"""
