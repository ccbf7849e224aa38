"""The HTTP server: routes, tokens, limits, several processes, push and incoming webhooks."""
