"""The worker: one process for one device. It does what an action says, in its window, or says why not.

* ``core/``      -- pure: windows, order, page table, IO memory, one result for each action
* ``engine``     -- the protocol of a device; ``engines/`` has the devices
* ``executors``  -- the threads that drive the core: EXEC, LOAD, PREPARE
* ``realtime``   -- priority, affinity and locked memory, where permitted
* ``server``     -- the sockets, and the process's life; ``inputs`` and ``session`` are its parts
* ``config``     -- the process's configuration

Clockwork, sections 4.4 and 5.2.
"""
