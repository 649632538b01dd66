"""The controller's process: one thread around the pure scheduler (Clockwork, section 5.3).

* ``server``           -- the loop: receive, schedule, carry out, beat, wait; start and stop
* ``shell``            -- messages from peers become events, commands become messages
* ``outbox``           -- what leaves: actions, dispatches, rejections, refusals
* ``peer_lifecycle``   -- hellos, heartbeats, sessions that begin and end
* ``sessions``, ``clock``, ``counters`` -- pure parts: who is connected, clock offsets, dropped messages
* ``registry``         -- the served models, and the checks that a new model has to pass
* ``administration``   -- requests of clients and operators to change or see the cluster
* ``memory``           -- granted changes and estimates, kept for the next controller
* ``recovery``         -- models that can be served again
* ``observers``, ``snapshot_stream`` -- consoles: who follows the controller, and the bytes that they receive
* ``logged_scheduler`` -- the scheduler and its event log; ``counters`` counts requests by model
* ``config``           -- the process's configuration

The process touches no tensor and makes no choice: choices are the scheduler's.
"""
