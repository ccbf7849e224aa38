"""What the tests of the server have in common: a server of the module, and its database."""

from support.over_http import server, url

__all__ = ["server", "url"]
