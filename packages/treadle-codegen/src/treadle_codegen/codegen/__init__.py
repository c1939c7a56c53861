"""From a Plan to running code: the renderer protocol, its implementations, the host."""
