"""The model repository's process: a folder in Triton's layout, kept served as it is and as it changes.

* ``textproto``, ``reading``, ``fields``, ``model_config`` -- ``config.pbtxt``: its format, its fields, and
  what of it is honoured
* ``layout``, ``digests``, ``scanner`` -- what is in the folder, and since when
* ``recipe``, ``compiling``, ``compile_child``, ``gc`` -- from a version's files to an artifact
* ``reconciler``, ``builds``, ``cluster``, ``index`` -- what should be served, what is, and the steps between:
  pure
* ``controller_link``, ``control``, ``requests``, ``served_files`` -- to the controller, to gateways, and for
  a controller that starts again
* ``server`` -- one event loop; the process's life
* ``config`` -- the process's configuration

It serves no request itself, and nothing that serves waits for it.
"""
