"""The formal model of the lifecycle: explores, proves, mutates and replays the table spec_fsm runs.

The model is the next thing to be built. It will hold no second copy of the table: it reads
`spec_fsm`'s edges, guards and effects, once as integers and once symbolically.
"""
