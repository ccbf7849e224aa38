"""What the tests of workers have in common: a server of the module, for those over HTTP, and its database."""

from support.over_http import server, url

__all__ = ["server", "url"]
