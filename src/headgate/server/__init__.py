"""The HTTP server: every route decodes, makes one call of the SDK, and encodes.

    http/       connections, requests, routing: no routes
    api/        the routes: a module a noun, with its requests, responses and handlers
    flow/       what makes many small calls cheap
    push/       posting messages to the URLs of consumers
    intake/     webhooks that come in
    operate/    who may, what is measured, whether the database is there
    console/    what a browser needs beside the API
    processes/  several processes on one port

`run` starts it all, with `settings`; `server` is what the requests of one process share, `siblings` are the others.
"""
