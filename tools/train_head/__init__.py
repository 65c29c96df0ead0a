"""Trains the EAGLE-3 draft head shipped in ``assets/smollm2-135m-eagle3``."""
