"""From a Program to a Plan: dependencies, fusion into kernels, memory."""
