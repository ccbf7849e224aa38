"""What a browser needs beside the API: `assets` are the console's own files (in `static/`), `sessions` its login.

A page is one module in `static/pages/`: what it asks of the API (`load`) and how that looks (`view`). Around them,
`app.js` is the frame, `view.js` makes the document match, `api.js` calls, and `ui.js` has the parts of pages.
"""
