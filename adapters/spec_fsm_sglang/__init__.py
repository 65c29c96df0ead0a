"""The SGLang adapter of spec-fsm: drives the real EAGLE worker through one lifecycle."""
