"""A server of several processes on one port ([ADR 23](docs/adr/0023-several-processes.md)).

    supervisor   the parent: it has the port, hands connections out, and starts processes again that have died
    child        a process as its parent sees it, and how it is made
    member       what a process has of its parent and its siblings
    messages     what parent and processes say to each other
    shared       numbers that all of them see: rates of tokens, polls that wait, connections that have ended
    cores        how many processes there are by default

The parent has no thread, no event loop and no connection to the database: it forks. The first process (slot 0)
migrates, makes the first token, maintains, pushes and forgets old audits; all of them serve.
"""
