"""The worker: one process for one device, which runs each action inside its window or reports why it did not.

* ``core/``      -- pure: windows, order, page table, IO memory, one result for each action
* ``engine``     -- the protocol of a device; ``engines/`` has the devices
* ``executors``  -- the threads that drive the core: EXEC, LOAD, PREPARE
* ``realtime``   -- priority, affinity and locked memory, where permitted
* ``network``    -- the network thread: controller and gateways; ``inputs`` holds tensors in transit
* ``server``     -- the process from start to drain
* ``config``     -- the process's configuration

Clockwork, sections 4.4 and 5.2.
"""
