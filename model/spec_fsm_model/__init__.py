"""The formal model of the lifecycle: explores the table spec_fsm runs, and replays its traces.

It holds no second copy of the table: it reads `spec_fsm`'s edges, guards, effects and invariants,
and asks its planner, policy and ledger where the table leaves a choice.
"""
