"""``make gpu-bundle``: one archive with which `gpu_check` runs on a GPU machine without a network.

``__main__`` makes it here: ``making`` compiles the models and computes what their outputs have to be,
``packing`` collects the code that goes along and writes ``gpu_check.pyz``. There ``runner`` unpacks
it and starts the check, whose first step is ``drawing``: weights from their seeds. ``contents`` is what both
sides know of a bundle's files.
"""
