"""`python -m pytracer` is the command `pytracer`."""

from pytracer.commands.main import main

main(prog_name="python -m pytracer")
