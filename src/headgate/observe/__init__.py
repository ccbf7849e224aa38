"""What `headgate observe` shows: `looking` is one look, over a database or HTTP, `app` shows one after the other."""
