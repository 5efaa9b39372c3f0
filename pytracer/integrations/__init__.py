"""pytracer in the tools that people train with: one module for each tool, over the public API.

The modules are imported only by name, by the program or by `on_snapshot`. Each imports its tool
itself; nothing else in pytracer does.
"""
