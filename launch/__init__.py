"""From ``mainspring.toml`` to running processes, on one machine.

* ``config``, ``tables`` -- the file's tables and the errors about them; ``sample`` documents them
* ``plan``               -- which processes, on which cores, and what each is told (``jobs``, ``models``)
* ``supervisor``         -- starts them, waits until they can serve, restarts what dies, stops in order
* ``child``              -- what a child process runs
* ``up``, ``local``      -- a supervisor in the foreground, and one beside a caller
* ``foreground``, ``logs`` -- what single processes share with those of a cluster
* ``durations``          -- durations among the options of a verb
* ``machine``             -- what this machine allows, for `mainspring doctor`
* ``models_view``         -- the rows of `mainspring models`
* ``protocol``            -- the tables of docs/messages.md
"""
