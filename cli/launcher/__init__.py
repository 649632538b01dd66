"""Running a configuration's processes on one machine.

* ``plan``               -- which processes, on which cores, and what each is told (``jobs``, ``models``)
* ``supervisor``         -- starts them, waits until they can serve, restarts what dies, stops in order
* ``child``              -- what a child process runs
* ``up``, ``local``      -- a supervisor in the foreground, and one beside a caller
* ``foreground``, ``logs`` -- what single processes share with those of a cluster
"""
