"""The worker: one process for one device. It does what an action says, inside its window, or reports why not.

* ``core/``      -- pure: windows, order, page table, IO memory, one result for each action
* ``engine``     -- the protocol of a device; ``engines/`` has the devices
* ``executors``  -- the threads that drive the core: EXEC, LOAD, PREPARE
* ``realtime``   -- priority, affinity and locked memory, where permitted
* ``network``    -- the network thread: controller and gateways; ``inputs`` holds tensors on their way
* ``server``     -- the process from start to drain
* ``config``     -- the process's configuration

Clockwork, sections 4.4 and 5.2.
"""
