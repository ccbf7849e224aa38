"""What the tests of workers have in common: two consumers; a server of the module, for those over HTTP."""

import pytest

import headgate
from support.over_http import server, url

__all__ = ["server", "url"]


@pytest.fixture
def urgent(orders: headgate.Stream) -> headgate.Consumer:
    return orders.consumer("urgent", create=True)


@pytest.fixture
def bulk(hg: headgate.Headgate) -> headgate.Consumer:
    return hg.stream("reports", create=True, lanes=4).consumer("bulk", create=True)
