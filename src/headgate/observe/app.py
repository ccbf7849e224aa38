"""The terminal view: it looks every two seconds, says when nothing answers, and asks before it does anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from time import monotonic
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding

from ..errors import Error, NotAllowed
from ..hints import translate
from ..sync import Headgate
from ..trouble import SORTS
from .actions import LOOK_ONLY, ROLE_LOOKS_ONLY, Action
from .beside import beside
from .dialogs import Ask, Help
from .figures import clean
from .looking import may_act, place
from .overview import OverviewScreen
from .screens import Live

EVERY = 2.0  # seconds between looks
LONGEST = 20.0
SHARE = 50  # a look at the database is at least so many times as long after one as it took: a fiftieth of a core
SHARE_HTTP = 4  # all who look through a server share its looks
LATE = 3.0  # seconds without an answer, after which that is said
PATIENCE = 2.0  # seconds for which a call over HTTP is repeated: what is wrong is to be said soon


class Observe(App[None]):
    """Looks again and again; keys sort, filter, drill down and act."""

    TITLE = "headgate observe"
    CSS_PATH = "observe.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [
        Binding("p", "act('p')", "Pause"), Binding("d", "act('d')", "Redrive"), Binding("t", "act('t')", show=False),
        Binding("space", "freeze", "Freeze", show=False), Binding("r", "look_now", show=False),
        Binding("l", "light", show=False), Binding("question_mark", "help", "Help"), Binding("q", "quit", "Quit"),
    ]  # fmt: skip

    def __init__(self, hg: Headgate, *, sort: str = SORTS[0], search: str = "") -> None:
        super().__init__()
        self.hg = hg
        self.place = place(hg)
        self.overview = OverviewScreen(sort, search)
        self.may_act: bool | None = None  # not asked yet
        self.is_frozen = False
        self.note = Text()
        self._said = ""  # of an action or a question; stays until something else is said
        self._mentioned = ""  # of what is shown
        self._failure: Error | OSError | None = None
        self._away_since: datetime | None = None
        self._asked: float | None = None  # since when an answer is waited for
        self._wake = asyncio.Event()
        if hg.http is not None:
            hg.http.patience = PATIENCE

    def on_mount(self) -> None:
        self.push_screen(self.overview)
        self.set_interval(1.0, self._tick)
        self.run_worker(self._watch(), name="watch", exit_on_error=True)

    # looking

    @property
    def live(self) -> Live[Any]:
        """The screen that shows something, whatever is asked above it."""
        return next(s for s in reversed(self.screen_stack) if isinstance(s, Live))

    def look_now(self) -> None:
        """Does not wait for the next time."""
        self._wake.set()

    action_look_now = look_now

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            if self.is_frozen:
                await self._wake.wait()
                continue
            pause = await self._look(self.live)
            self._tick()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)

    async def _look(self, screen: Live[Any]) -> float:
        """Looks once; returns for how long not to. One that does not answer is left to itself when a key wants more."""
        began = self._asked = monotonic()
        looking = asyncio.ensure_future(beside(self._ask, screen))
        is_wanted_again = False
        while not looking.done():
            woken = asyncio.ensure_future(self._wake.wait())
            await asyncio.wait({looking, woken}, return_when=asyncio.FIRST_COMPLETED)
            woken.cancel()
            if self._wake.is_set():
                self._wake.clear()
                is_wanted_again = True
                if self.live is not screen and not looking.done():
                    looking.cancel()
                    return 0.0
        took, self._asked = monotonic() - began, None
        try:
            seen = looking.result()
        except (Error, OSError) as error:
            self._failed(error)
            return EVERY
        if self._failure is not None:
            self._failure = self._away_since = None
            self.say("it answers again")
        if screen in self.screen_stack:
            screen.show(seen)
        if is_wanted_again:
            return 0.0
        return min(LONGEST, max(EVERY, took * (SHARE if self.hg.http is None else SHARE_HTTP)))

    def _ask(self, screen: Live[Any]) -> Any:
        if self.may_act is None:
            self.may_act = may_act(self.hg)
        return screen.look(self.hg)

    def _failed(self, error: Error | OSError) -> None:
        self._failure = error
        self._away_since = self._away_since or datetime.now().astimezone()

    # what is said

    def state(self) -> Text:
        """Whether what is shown is of now."""
        if self._away_since is not None:
            return Text(f"AWAY since {self._away_since:%H:%M:%S}", "bold red")
        if self.is_frozen:
            return Text("frozen: Space goes on", "bold yellow")
        if self._asked is not None and (waited := monotonic() - self._asked) > LATE:
            return Text(f"no answer for {waited:.0f}s", "bold yellow")
        looks = Text("looks only  ", "yellow") if self.may_act is False else Text()
        return looks.append(f"{datetime.now().astimezone():%H:%M:%S}", "dim")

    def say(self, text: str) -> None:
        """What was done, or why not."""
        self._said = clean(text)
        self._tick()

    def mention(self, text: str) -> None:
        """What there is to be said of what is shown."""
        self._mentioned = clean(text)

    def _tick(self) -> None:
        if self._failure is not None:
            self.note = Text(f"{_sentence(self._failure)} This is how it was; it is asked again and again.", "red")
        else:
            self.note = Text(self._said or self._mentioned)
        for screen in self.screen_stack:
            if isinstance(screen, Live) and screen.is_mounted:
                screen.tick()

    # keys

    def action_freeze(self) -> None:
        """Stops the updates, or goes on."""
        self.is_frozen = not self.is_frozen
        self._wake.set()
        self._tick()

    def action_light(self) -> None:
        """Light or dark."""
        self.theme = "textual-dark" if self.theme == "textual-light" else "textual-light"

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(Help())

    def action_pop_screen(self) -> Any:
        """Back, and looks at what is there."""
        self._said = self._mentioned = ""
        popped = self.pop_screen()
        self.look_now()
        return popped

    def push_screen(self, screen: Any, *args: Any, **more: Any) -> Any:
        """Opens a screen, and looks for it at once."""
        if isinstance(screen, Live):
            self._said = self._mentioned = ""
            self._wake.set()
        return super().push_screen(screen, *args, **more)

    def action_act(self, key: str) -> None:
        """Asks whether to do it, and does it."""
        wanted = self.live.actions().get(key)
        if wanted is None:
            self.say("choose a consumer first" if key in "pd" else "choose a parked message of a consumer first")
        elif isinstance(wanted, str):
            self.say(wanted)
        elif self.may_act is False:
            self.say(LOOK_ONLY if self.hg.http is not None else ROLE_LOOKS_ONLY)
        else:
            self.push_screen(Ask(wanted), lambda yes: self._do(wanted) if yes else None)

    def _do(self, action: Action) -> None:
        self.run_worker(self._act(action.act), name="act", exit_on_error=True)

    async def _act(self, act: Callable[[Headgate, Callable[[str], None]], str]) -> None:
        def tell(text: str) -> None:
            self.call_from_thread(self.say, text)

        self.say("…")
        try:
            self.say(await beside(act, self.hg, tell))
        except NotAllowed as error:
            self.say(f"{error.message}: {LOOK_ONLY}" if self.hg.http is not None else _sentence(error))
        except (Error, OSError) as error:
            self.say(_sentence(error))
        self.look_now()


def _sentence(error: Error | OSError) -> str:
    if not isinstance(error, Error):
        return clean(f"{error}.")
    hint = f": {translate(error.hint, 'cli')}" if error.hint else ""
    return clean(f"{error.message}{hint}.")
