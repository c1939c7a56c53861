"""Autotuning: which of several ways to compute the same is the fastest on this device, found by measuring."""
