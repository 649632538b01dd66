"""The console's web server: one picture for all pages that show the same, over WebSockets and as JSON.

* ``app``       -- which path leads where
* ``guard``     -- who may ask: names of the host, origins, tokens; the headers that every answer has
* ``files``     -- the page's files
* ``shows``     -- what can be shown, with its parameters
* ``pictures``  -- a show, made once for all that want it at that moment
* ``socket``    -- one page's WebSocket
* ``api``       -- the same for scripts
* ``changes``   -- what operators ask for with a token
* ``listener``  -- the listening socket and its connections' bounds
"""
