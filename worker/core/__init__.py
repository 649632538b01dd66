"""The worker's pure core. Nothing in this folder knows a clock, thread, socket or byte of a tensor.

* ``state_machine`` -- `WorkerCore`: windows, order, one result for each action; says how to drive it
* ``jobs``          -- the vocabulary between the core and its drivers
* ``residency``     -- prepared models, and the page table
* ``window_queue``  -- what waits for an executor, in strict order
* ``io_memory``     -- where inputs and outputs lie

Clockwork, sections 4.4 and 5.2.
"""
