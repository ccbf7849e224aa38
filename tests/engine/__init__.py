"""The engine by plain SQL: what functions promise, beside each other and inside any transaction."""
