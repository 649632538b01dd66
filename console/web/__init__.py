"""The console's web server: one picture for all pages that show the same, over WebSockets and as JSON.

`console.server` says which path leads where and serves the page's files. `guard` decides who may ask, `shows`
what can be shown, `pictures` makes a show once for all that want it, `socket` is one page's WebSocket, `api`
the same for scripts with what operators ask for, `source` where the records come from.
"""
