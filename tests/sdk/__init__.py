"""The Python client, sync, async and over HTTP."""
