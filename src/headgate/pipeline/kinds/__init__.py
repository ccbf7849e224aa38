"""The kinds of pipelines, a module each: what it checks, and what a run of it does."""
