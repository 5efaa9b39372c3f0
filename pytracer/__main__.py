"""`python -m pytracer` is the command `pytracer`."""

from pytracer.cli import main

main(prog_name="python -m pytracer")
