"""The generator of the sync client, on small pieces of source."""

from pathlib import Path
from textwrap import dedent

import pytest

from generate_sync import AIO, SYNC, NoSyncForm, main, rewrite_text, to_sync

CLIENT = '''\
"""The client.

    async with AsyncHeadgate(url) as hg:
        await hg.send("hello")
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from headgate.aio.stream import AsyncStream

__all__ = ["AsyncHeadgate", "Backoff"]

Backoff = Callable[[int], Awaitable[float]]


class AsyncHeadgate:
    async def send(self, data: str) -> int:
        """Send one message: `await hg.send("x")`."""
        # The pool may be busy: try again, once.
        await asyncio.sleep(0.1)
        return (await self.pool.fetchone("select 1"))[0]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncStream]:
        async with self.pool.connection() as conn, conn.transaction():
            yield AsyncStream(conn)
'''

SYNC_CLIENT = '''\
# Generated from src/headgate/aio/client.py by tools/generate_sync.py: do not edit, run `make sync`.
"""The client.

with Headgate(url) as hg:
    hg.send("hello")
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headgate.sync.stream import Stream

__all__ = ["Backoff", "Headgate"]

Backoff = Callable[[int], float]


class Headgate:
    def send(self, data: str) -> int:
        """Send one message: `hg.send("x")`."""
        # The pool may be busy: try again, once.
        time.sleep(0.1)
        return self.pool.fetchone("select 1")[0]

    @contextmanager
    def transaction(self) -> Iterator[Stream]:
        with self.pool.connection() as conn, conn.transaction():
            yield Stream(conn)
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one async module."""
    (tmp_path / AIO).mkdir(parents=True)
    (tmp_path / AIO / "client.py").write_text(CLIENT)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("async def f(): pass", "def f(): pass"),
        ("x = await f(await g())", "x = f(g())"),
        ("async with a as b: pass", "with a as b: pass"),
        ("async for x in y: pass", "for x in y: pass"),
        ("[x async for x in y if await f(x)]", "[x for x in y if f(x)]"),
        ("(await (await f()).g()).h", "f().g().h"),
        ("(await f()) + 1", "(f()) + 1"),
        ("(await f() or g).h", "(f() or g).h"),
        ("f(await g()).h", "f(g()).h"),
        ("return_((await f()).g)", "return_(f().g)"),
        ("def __aenter__(self): ...", "def __enter__(self): ..."),
        ("def __aexit__(self, *info): ...", "def __exit__(self, *info): ..."),
        ("def __aiter__(self): raise StopAsyncIteration", "def __iter__(self): raise StopIteration"),
        ("x = await anext(pool.__anext__())", "x = next(pool.__next__())"),
        ("await pool.aclose()", "pool.close()"),
        ("from headgate.aio import AsyncConsumer", "from headgate.sync import Consumer"),
        ("from .aio.client import AsyncMessage", "from .sync.client import Message"),
        ("x: AsyncConnection | AsyncConnectionPool", "x: Connection | ConnectionPool"),
        ("x: AbstractAsyncContextManager[AsyncWhatever]", "x: AbstractContextManager[Whatever]"),
        ("x: AsyncGenerator[int, None]", "x: Generator[int, None]"),
        ("x: Callable[[int], Awaitable[dict[str, int]]]", "x: Callable[[int], dict[str, int]]"),
        ("x: Coroutine[Any, Any, list[int]]", "x:  list[int]"),
        ("await asyncio.sleep(1)", "time.sleep(1)"),
        ("lock = asyncio.Lock()", "lock = threading.Lock()"),
        ("f'{await f()} {{AsyncStream}}'; await g()", "f'{f()} {{Stream}}'; g()"),
        ("Asynchronous = my_async = Async", "Asynchronous = my_async = Async"),
        ("# AsyncStream, to the end", "# Stream, to the end"),
    ],
)
def test_code(source: str, expected: str) -> None:
    assert to_sync(source) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("An AsyncStream, or an `AsyncHeadgate`", "A Stream, or a `Headgate`"),
        ("``await orders.send(1)``; await the result", "``orders.send(1)``; await the result"),
        ("in an async for loop of the async client", "in a for loop of the sync client"),
        ("wait with asyncio.sleep", "wait with time.sleep"),
        ("see headgate.aio", "see headgate.sync"),
    ],
)
def test_text(text: str, expected: str) -> None:
    assert rewrite_text(text) == expected


def test_markers() -> None:
    source = """\
        def f():
            # async-only: begin
            return asyncio.gather(a, b)
            # async-only: end
            # sync-only: begin
            # if a:
            #     return "as it is: AsyncStream"
            #
            # return b
            # sync-only: end
        """
    expected = """\
        def f():
            if a:
                return "as it is: AsyncStream"

            return b
        """
    lines = [line.rstrip() for line in to_sync(dedent(source)).splitlines()]
    assert lines == dedent(expected).splitlines()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = await asyncio.gather(a, b)", "asyncio.gather has no sync form"),
        ("from asyncio import gather", "this use of asyncio has no sync form"),
        ("# async-only: begin\nx = 1", "has no end"),
        ("# async-only: begin\n# sync-only: end", "line 2: .* does not match"),
        ("# sync-only: end", "line 1: .* does not match"),
        ("# sync-only: begin\nx = 1\n# sync-only: end", "line 2: .* must be commented out"),
    ],
)
def test_what_has_no_sync_form_is_refused(source: str, message: str) -> None:
    with pytest.raises(NoSyncForm, match=message):
        to_sync(source)


def test_writes_a_formatted_module(root: Path) -> None:
    assert main(["--root", str(root)]) == 0
    assert (root / SYNC / "client.py").read_text() == SYNC_CLIENT
    assert main(["--root", str(root), "--check"]) == 0


def test_check_names_what_drifted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--root", str(root)])
    target = root / SYNC / "client.py"
    target.write_text(SYNC_CLIENT + "\nx = 1\n")
    capsys.readouterr()

    assert main(["--root", str(root), "--check"]) == 1
    error = capsys.readouterr().err
    assert "src/headgate/sync/client.py" in error
    assert "make sync" in error
    assert target.read_text().endswith("x = 1\n"), "--check writes nothing"


def test_check_finds_a_module_never_generated(root: Path) -> None:
    assert main(["--root", str(root), "--check"]) == 1
    assert not (root / SYNC).exists()


def test_removes_a_module_whose_source_is_gone(root: Path) -> None:
    main(["--root", str(root)])
    written_by_hand = root / SYNC / "other.py"
    written_by_hand.write_text("x = 1\n")
    (root / AIO / "client.py").unlink()

    assert main(["--root", str(root), "--check"]) == 1
    assert main(["--root", str(root)]) == 0
    assert not (root / SYNC / "client.py").exists()
    assert written_by_hand.exists()


def test_an_error_names_the_source(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / AIO / "client.py").write_text("async def f():\n    await asyncio.gather()\n")
    assert main(["--root", str(root)]) == 2
    assert "src/headgate/aio/client.py: asyncio.gather" in capsys.readouterr().err


def test_nothing_to_do_without_an_async_client(tmp_path: Path) -> None:
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--root", str(tmp_path), "--check"]) == 0
    assert not (tmp_path / SYNC).exists()
