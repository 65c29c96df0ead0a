"""Stateful fuzzing of the real scheduler and EAGLE worker, in process, one process a configuration.

`requests` says what is asked and judges the answers, `world` holds the engine and interprets
events, `loads` turns load patterns into events, `machine` lets Hypothesis choose them, `process`
runs one configuration and `python -m fuzz` all of them.
"""
