"""One HTML file that shows snapshots, without a network: `pytracer view` and `Tracer.view()`.

The page is `template.html`, which is built from web/, with the data of the snapshots in it. The
format of the data is described in docs/explanation/page.md.
"""
