"""From a Program to a ExecutionPlan: dependencies, fusion into kernels, memory."""
