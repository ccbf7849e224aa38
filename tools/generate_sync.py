"""Write the sync client, src/headgate/sync, from the async one, src/headgate/aio.

The async client is written by hand, the sync one never is. The source is edited token by token, so that comments,
docstrings and layout come through. Where the two must differ, the async source says so: what stands between the lines
`# async-only: begin` and `# async-only: end` is left out of the sync client, and what stands, commented out, between
`# sync-only: begin` and `# sync-only: end` is uncommented there and otherwise taken as it is.
"""

import argparse
import io
import keyword
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from token import COMMENT, NAME, NEWLINE, NL, STRING

AIO, SYNC = Path("src/headgate/aio"), Path("src/headgate/sync")
HEADER = "# Generated from {source} by tools/generate_sync.py: do not edit, run `make sync`.\n"

NAMES = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "run_async": "run_sync",
    "aio": "sync",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
    "enter_async_context": "enter_context",
}
WORDS = {"async": "sync", "asynchronous": "synchronous"}  # in comments and strings only
ASYNCIO = {"sleep": "time.sleep", "Lock": "threading.Lock", "Event": "threading.Event"}
AWAITED = {"Awaitable", "Coroutine"}  # Awaitable[X] and Coroutine[Any, Any, X] become X
# What rewriting can leave untidy: import order, unused or repeated imports, the order of __all__, needless noqa.
TIDY = "I,F401,F811,RUF022,RUF100"

# Since Python 3.12 an f-string is many tokens.
STRING_STARTS = {getattr(tokenize, name, -1) for name in ("FSTRING_START", "TSTRING_START")}
STRING_ENDS = {getattr(tokenize, name, -1) for name in ("FSTRING_END", "TSTRING_END")}
OPENING, CLOSING, PLAIN = set("([{"), set(")]}"), set("()[].")

Edit = tuple[int, int, str]


class NoSyncForm(Exception):
    """The async source holds something that cannot be turned into sync code."""


@dataclass
class Token:
    """A token with its place in the source as offsets, which is what edits need."""

    kind: int
    line: int
    start: int
    end: int
    text: str

    @property
    def is_identifier(self) -> bool:
        return self.kind == NAME and not keyword.iskeyword(self.text)


def rename(name: str) -> str:
    return NAMES.get(name) or re.sub(r"^Async(?=[A-Z])", "", name)


def rewrite_text(text: str) -> str:
    """Rewrite a comment or a string: prose with names, and now and then a line of code, in it."""
    text = re.sub(r"\b([Aa])n (?=`*(?:Async[B-DF-HJ-NP-TV-Z]|async(?!io)))", r"\1 ", text)
    text = re.sub(r"\bawait (?=[\w.]+\()", "", text)
    text = re.sub(r"\basync (?=(?:def|for|with)\b)", "", text)
    text = re.sub(r"\basyncio\.(\w+)", lambda match: ASYNCIO.get(match[1], match[0]), text)
    return re.sub(r"\b[A-Za-z_]\w*", lambda match: WORDS.get(match[0]) or rename(match[0]), text)


def apply_markers(source: str) -> tuple[str, set[int]]:
    """Leave out async-only blocks and uncomment sync-only ones; also return the numbers of the uncommented lines."""
    lines: list[str] = []
    verbatim: set[int] = set()
    block = ""
    for number, line in enumerate(io.StringIO(source), 1):
        marker = re.fullmatch(r"\s*# (async|sync)-only: (begin|end)\s*", line)
        if marker:
            if (block == "") != (marker[2] == "begin") or (block and block != marker[1]):
                raise NoSyncForm(f"line {number}: `{line.strip()}` does not match the marker before it")
            block = marker[1] if marker[2] == "begin" else ""
        elif block == "":
            lines.append(line)
        elif block == "sync":
            if line.strip()[:1] not in {"", "#"}:
                raise NoSyncForm(f"line {number}: a line of a sync-only block must be commented out")
            lines.append(re.sub(r"^(\s*)# ?", r"\1", line))
            verbatim.add(len(lines))
    if block:
        raise NoSyncForm(f"a block `# {block}-only: begin` has no end")
    return "".join(lines), verbatim


def read_tokens(source: str) -> list[Token]:
    """The tokens of the source without line breaks inside brackets, and each f-string as one token."""
    line_starts = [0]
    for line in [*io.StringIO(source), ""]:  # the end marker stands on a line of its own
        line_starts.append(line_starts[-1] + len(line))
    tokens, depth = [Token(NL, 0, 0, 0, "")], 0  # the first token too has one before it
    for kind, _, (row, column), (end_row, end_column), _ in tokenize.generate_tokens(io.StringIO(source).readline):
        if kind == NL:
            continue
        start, end = line_starts[row - 1] + column, line_starts[end_row - 1] + end_column
        if depth:  # inside an f-string
            tokens[-1].end, tokens[-1].text = end, source[tokens[-1].start : end]
        else:
            tokens.append(Token(STRING if kind in STRING_STARTS else kind, row, start, end, source[start:end]))
        depth += (kind in STRING_STARTS) - (kind in STRING_ENDS)
    return tokens


def read_brackets(tokens: list[Token], opening: int) -> tuple[int, list[Token]]:
    """The index of the closing bracket, and the tokens in these brackets but in no further ones."""
    outer: list[Token] = []
    depth = 1
    for index in range(opening + 1, len(tokens)):
        depth -= tokens[index].text in CLOSING
        if depth == 0:
            return index, outer
        if depth == 1:
            outer.append(tokens[index])
        depth += tokens[index].text in OPENING
    raise NoSyncForm("a bracket has no end")


def edit_awaited(tokens: list[Token], index: int) -> list[Edit]:
    """Awaitable[X] -> X: drop everything up to the last argument, and the closing bracket."""
    end, outer = read_brackets(tokens, index + 1)
    start = max([tokens[index + 1].end, *(token.end for token in outer if token.text == ",")])
    return [(tokens[index].start, start, ""), (tokens[end].start, tokens[end].end, "")]


def edit_brackets(tokens: list[Token], index: int) -> list[Edit]:
    """(await x.y()).z -> x.y().z: brackets that only `await` needed go with it."""
    end, (_await, *outer) = read_brackets(tokens, index)
    is_call = tokens[index - 1].text in CLOSING or tokens[index - 1].is_identifier
    is_plain = all(token.is_identifier or token.text in PLAIN for token in outer)
    if is_call or not is_plain or tokens[end + 1].text not in {".", "["} or tokens[index].line != tokens[end].line:
        return []
    return [(tokens[place].start, tokens[place].end, "") for place in (index, end)]


def edit_asyncio(tokens: list[Token], index: int) -> Edit:
    before, token, after, attribute, *_ = tokens[index - 1 :]
    if before.text == "import" and after.kind in (NEWLINE, COMMENT):
        return (token.start, token.end, "threading, time")  # ruff drops what the file does not use
    if after.text == "." and attribute.text in ASYNCIO:
        return (token.start, attribute.end, ASYNCIO[attribute.text])
    what = f"asyncio.{attribute.text}" if after.text == "." else "this use of asyncio"
    raise NoSyncForm(f"{what} has no sync form; put it in an async-only block")


def find_edits(tokens: list[Token], verbatim: set[int]) -> Iterator[Edit]:
    for index, (token, following) in enumerate(pairwise(tokens)):
        if token.line in verbatim:
            continue
        if token.kind in (STRING, COMMENT):
            yield (token.start, token.end, rewrite_text(token.text))
        elif token.text == "(" and following.text == "await":
            yield from edit_brackets(tokens, index)
        elif token.text in {"async", "await"}:
            yield (token.start, following.start, "")
        elif token.text == "asyncio":
            yield edit_asyncio(tokens, index)
        elif token.text in AWAITED and following.text == "[":
            yield from edit_awaited(tokens, index)
        elif token.kind == NAME:
            yield (token.start, token.end, rename(token.text))


def to_sync(source: str) -> str:
    """Turn async source into sync source, not yet formatted."""
    source, verbatim = apply_markers(source)
    parts: list[str] = []
    done = 0
    for start, end, text in sorted(find_edits(read_tokens(source), verbatim)):
        if start >= done:  # else it is inside something that the edit before it removed
            parts += [source[done:start], text]
            done = end
    return "".join([*parts, source[done:]])


def ruff(arguments: list[str], source: str, path: Path) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--quiet", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=source, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True).stdout


def generate(root: Path) -> dict[Path, str]:
    """What each file of the sync client should hold."""
    files: dict[Path, str] = {}
    for path in sorted((root / AIO).glob("*.py")):
        target, source = root / SYNC / path.name, path.relative_to(root).as_posix()
        try:
            text = HEADER.format(source=source) + to_sync(path.read_text(encoding="utf-8"))
            compile(text, str(target), "exec")
        except (NoSyncForm, SyntaxError, tokenize.TokenError) as error:
            raise NoSyncForm(f"{source}: {error}") from error
        text = ruff(["check", "--fix-only", "--extend-select", TIDY], text, target)
        files[target] = ruff(["format"], text, target)
    return files


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write src/headgate/sync from src/headgate/aio.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).parents[1], help="the repository (default: this one)"
    )
    options = parser.parse_args(arguments)
    root: Path = options.root.resolve()
    if not (root / AIO).is_dir():
        print(f"{AIO} does not exist: nothing to do", file=sys.stderr)
        return 0
    try:
        files = generate(root)
    except NoSyncForm as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    present = {path: path.read_text(encoding="utf-8") for path in (root / SYNC).glob("*.py")}
    drifted = [path for path, text in files.items() if present.get(path) != text]
    stale = [path for path in sorted(present.keys() - files) if present[path].startswith(HEADER.partition("{")[0])]
    if options.check:
        for path in drifted + stale:
            print(f"{path.relative_to(root)} does not match its async source; run `make sync`", file=sys.stderr)
        return 1 if drifted + stale else 0
    (root / SYNC).mkdir(exist_ok=True)
    for path in drifted:
        path.write_text(files[path], encoding="utf-8")
    for path in stale:
        path.unlink()
    print(f"{len(files)} files, {len(drifted)} written, {len(stale)} removed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
