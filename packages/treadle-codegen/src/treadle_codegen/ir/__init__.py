"""The define-by-run loop IR."""
