"""The terminal view, `headgate observe`.

`looking` is one look at everything and `details` at one thing, over a database or HTTP; `waiting` says why a message
waits. `app` looks again and again and acts; `screens` is what its screens share, `overview` the first one with the
lists of `views`, `opened` those that open, `dialogs` what is above them. `tables` and `cells` draw: whatever others
wrote is made safe in `figures`. `actions` says what is done before it is done, `beside` keeps calls out of the way, and
`text` is `--once`.
"""
