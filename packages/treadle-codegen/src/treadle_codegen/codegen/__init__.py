"""From an ExecutionPlan to running code: the renderer protocol, its implementations, the host."""
