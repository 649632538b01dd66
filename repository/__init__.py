"""The model repository's process: a folder in Triton's layout, kept served as it is and as it changes.

* ``textproto``, ``reading``, ``config_groups``, ``model_config`` -- ``config.pbtxt``: its format, its fields,
  and what of it is honoured
* ``layout``, ``named_files``, ``scanner`` -- what is in the folder, and since when
* ``recipe``, ``compiling``, ``compile_child`` -- from a version's files to an artifact
* ``reconciler``, ``builds`` -- what should be served, what is, and the steps between: pure
* ``controller_link``, ``requests``, ``served_files`` -- to the controllers, to gateways, and for a controller
  that starts again
* ``server`` -- one event loop; the process's life
* ``config`` -- the process's configuration

It serves no request itself, and nothing that serves waits for it.
"""
