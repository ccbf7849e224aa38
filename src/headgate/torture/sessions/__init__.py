"""What the threads of a history do: `session` (what all have in common), `senders`, `workers`, `operators`, `readers`,
`observers`.
"""
