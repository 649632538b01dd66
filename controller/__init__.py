"""The controller's process: one thread and one inbox around the pure scheduler (Clockwork, section 5.3).

* ``server``    -- the loop: take in, schedule, carry out, beat, wait; the process's life
* ``router``    -- the connections of its peers
* ``shell``     -- messages from peers, made into events
* ``carrier``   -- commands, made into messages to peers
* ``members``   -- hellos, heartbeats, sessions that begin and end
* ``observers`` -- who watches, and what they are told; ``painting``, ``records`` -- what they get, as bytes
* ``sessions``, ``clock``, ``counters`` -- pure parts: who is connected, clock offsets, what was dropped
* ``catalogue`` -- the served models and the requests of administrators
* ``post``      -- sending, and noticing who can't be sent to
* ``feed``      -- the scheduler behind its event log
* ``config``    -- the process's configuration

It touches no tensor and makes no choice: choices are the scheduler's.
"""
